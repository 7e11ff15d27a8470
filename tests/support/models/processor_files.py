"""Files of logits processors for engines in tests."""

from __future__ import annotations

from pathlib import Path

PROCESSORS = {
    "add": "def process(logits, ids, arguments):\n    logits[int(arguments[0])] += arguments[1]\n",
    "no-repeat": "def process(logits, ids, arguments):\n    logits[ids[-1]] = float('-inf')\n",
    # Another id for each history, so that a sequence shows whether the processor got all of its ids.
    "by-history": "def process(logits, ids, arguments):\n    logits[3 + int(ids.sum()) % 250] += 1e4\n",
    "raise-all": "def process(logits, ids, arguments):\n    logits[:] = 0\n",
    "fail": (
        "def process(logits, ids, arguments):\n"
        "    if len(ids) >= arguments[0]:\n"
        "        raise LookupError('no such word')\n"
    ),
    "pause": "import time\n\ndef process(logits, ids, arguments):\n    time.sleep(float(arguments[0]))\n",
    "end": "def process(logits, ids, arguments):\n    logits[:] = float('-inf')\n",
}


def write_processors(folder: Path) -> dict[str, Path]:
    """Write the files; return them by name."""
    paths = {name: folder / f"{name}.py" for name in PROCESSORS}
    for name, path in paths.items():
        path.write_text(PROCESSORS[name])
    return paths


def processor_arguments(paths: dict[str, Path]) -> list[str]:
    """Return the command-line arguments that pass them to an engine."""
    return [part for name, path in paths.items() for part in ("--logits-processor", f"{name}={path}")]


def by_history(prompt: list[int], count: int) -> list[int]:
    """Return the ids of a greedy sequence with "by-history"."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(3 + sum(ids) % 250)
    return ids[len(prompt) :]
