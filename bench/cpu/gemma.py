"""Gemma 3 270M, a published file: how likely a text is to it, and what it costs, ours beside llama.cpp's programs.

    python -m bench.cpu.gemma [perplexity] [cost] [--programs FOLDER] [--no-write]

FOLDER has llama.cpp's llama-perplexity and llama-bench; without it, ours alone is measured. Parts, both by default:

- perplexity: as llama.cpp counts it, of the second half of each 512 ids of `tests/texts/mill.txt`, all pieces beginning
  with BOS.
- cost: processor time of one thread, which other work on the machine hardly changes: for an id of a prompt of 512, and
  for one of 64 that follow each other; without a service. In turns, ROUNDS times; llama-bench's is the difference of
  runs with more and with fewer repetitions.
"""

from __future__ import annotations

import math
import re
import resource
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import torch
from headrace_engine.backends.cpu.runner import CpuRunner
from headrace_engine.backends.host import compute_threads
from headrace_engine.config import ComputeDtype, KvCacheMode
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.tokenizer import load_tokenizer
from support.backends.cpu_sequences import cpu_model
from support.models.gemma3 import fetch_gemma3
from support.models.text_accuracy import MOST_ROWS, TEXT, prefilled_logits

from bench.common.machine import cpu_name
from bench.common.page import GEMMA_COST, GEMMA_PERPLEXITY, measurement
from bench.cpu.mixture import our_runner
from bench.cpu.whole_steps import alone
from bench.peers.workloads import random_ids

ROUNDS = 3
PROMPT, NEW = 512, 64
_MORE, _FEWER = 3, 1
"""Repetitions of llama-bench."""
_WAYS: Mapping[str, Mapping[str, object]] = {
    "as shipped": {},
    "as shipped, KV INT8": {"kv_cache_mode": KvCacheMode.INT8},
    "in float32": {"dtype": ComputeDtype.FLOAT32},
}
_THEIRS = re.compile(r"Final estimate: PPL = ([\d.]+)")


def pieces(path: Path) -> list[list[int]]:
    """Return the text in pieces of PROMPT ids, each beginning with BOS."""
    files = open_model(str(path))
    assert files.bos_id is not None
    ids = load_tokenizer(files).tokenizer.encode(TEXT.read_text("utf-8"), add_special_tokens=False).ids
    ids = [files.bos_id, *ids]
    starts = range(0, len(ids) - PROMPT + 1, PROMPT)
    return [[files.bos_id, *ids[start + 1 : start + PROMPT]] for start in starts]


def our_perplexity(path: Path, texts: list[list[int]], **settings: object) -> float:
    """Return the perplexity of the second half of each piece."""
    half, losses = PROMPT // 2, []
    with cpu_model(path, max_length=PROMPT, max_batch=MOST_ROWS, **settings) as model:
        for ids in texts:
            rows = prefilled_logits(model, [ids])[half:-1].double()
            losses.append(torch.nn.functional.cross_entropy(rows, torch.tensor(ids[half + 1 :])).item())
    return math.exp(sum(losses) / len(losses))


def their_perplexity(folder: Path, path: Path, threads: int) -> float:
    """Return the same by llama-perplexity."""
    command = [
        str(folder / "llama-perplexity"),
        "-m",
        str(path),
        "-f",
        str(TEXT),
        "-c",
        str(PROMPT),
        "-t",
        str(threads),
    ]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found = _THEIRS.search(answer.stdout)
    assert found is not None, answer.stdout
    return float(found[1])


def our_costs(runner: CpuRunner, number: int) -> tuple[float, float]:
    """Return milliseconds for an id of a prompt, and of an answer."""
    began = time.process_time()
    alone(runner, random_ids(PROMPT, number), 1)
    between = time.process_time()
    alone(runner, random_ids(1, number), NEW)
    return (between - began) / PROMPT * 1e3, (time.process_time() - between) / NEW * 1e3


def their_costs(folder: Path, path: Path) -> tuple[float, float]:
    """Return the same by llama-bench."""
    prompt = _cpu_seconds(folder, path, PROMPT, 0, _MORE) - _cpu_seconds(folder, path, PROMPT, 0, _FEWER)
    new = _cpu_seconds(folder, path, 0, NEW, _MORE) - _cpu_seconds(folder, path, 0, NEW, _FEWER)
    repetitions = _MORE - _FEWER
    return prompt / repetitions / PROMPT * 1e3, new / repetitions / NEW * 1e3


def _cpu_seconds(folder: Path, path: Path, prompt: int, new: int, repetitions: int) -> float:
    work = ["-p", str(prompt), "-n", str(new), "-r", str(repetitions)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [folder / "llama-bench", "-m", path, "-t", "1", "--no-warmup", *work], check=True, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure, print and write."""
    parser = measurement(__doc__)
    parser.add_argument("parts", nargs="*", choices=["perplexity", "cost", []], default=[])
    parser.add_argument("--programs", type=Path, help="folder of llama.cpp's programs")
    chosen = parser.parse_args()
    parts = {"perplexity": (_perplexities, GEMMA_PERPLEXITY), "cost": (_costs, GEMMA_COST)}
    with tempfile.TemporaryDirectory() as folder:
        path = fetch_gemma3(Path(folder))
        for part in chosen.parts or parts:
            measured, section = parts[part]
            lines = measured(path, chosen.programs)
            when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
            text = f"{when}. {cpu_name()}.\n\n" + "\n".join(lines)
            print(text, flush=True)
            if chosen.write:
                section.write(text)


def _perplexities(path: Path, programs: Path | None) -> list[str]:
    texts = pieces(path)
    rows = [("headrace", way, our_perplexity(path, texts, **settings)) for way, settings in _WAYS.items()]
    if programs is not None:
        rows.append(("llama.cpp", "as shipped", their_perplexity(programs, path, compute_threads())))
    lines = ["| | weights | perplexity |", "|---|---|---|"]
    return [*lines, *(f"| {who} | {way} | {value:.4f} |" for who, way, value in rows)]


def _costs(path: Path, programs: Path | None) -> list[str]:
    ours, theirs = [], []
    with our_runner(path, rows=PROMPT, length=2 * PROMPT, threads=1) as runner:
        our_costs(runner, ROUNDS)
        for number in range(ROUNDS):
            ours.append(our_costs(runner, number))
            if programs is not None:
                theirs.append(their_costs(programs, path))
    lines = ["| | prompt, ms an id | answer, ms an id |", "|---|---|---|"]
    for who, found in (("headrace", ours), ("llama.cpp", theirs)):
        if found:
            prompt, new = (median(costs) for costs in zip(*found, strict=True))
            lines.append(f"| {who} | {prompt:.2f} | {new:.2f} |")
    return lines


if __name__ == "__main__":
    main()
