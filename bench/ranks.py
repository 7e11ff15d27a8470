"""What a step costs with several ranks: of one id, of eight sequences, and of a prompt, by one process and by more.

    python -m bench.ranks [--backend cpu] [--rounds 9] [--ranks 2] [--no-write]

A random Llama (8 layers, 1,024 wide, 16 heads, 4 of keys and values, about 110 million parameters) in float32, by a
backend in processes as an engine starts them, with two threads in all: of one process, and of ranks that have one each,
in both modes. Steps of all are taken in turns. Writes the backend's section of results/ranks.md.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from headrace_engine.config import ComputeUnit, ModelFormat, TensorParallelMode
from headrace_engine.core.runner import Runner, SequenceStep
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.process import make_runner
from headrace_engine.sampling_params import SamplingParams
from support.backends.runners import ready
from support.models.tiny_models import make_tiny_llama

from bench.common.machine import cpu_name
from bench.common.page import CPU_RANKS, RANKS, measurement

BACKENDS = ("cpu", "torch")
THREADS = 2
CONTEXT = 64
"""Tokens before each measured one."""
_GREEDY = SamplingParams(temperature=0)


def main() -> None:
    """Measure, and write the results."""
    parser = measurement(__doc__)
    parser.add_argument("--backend", choices=BACKENDS, default="torch", help="the backend that computes")
    parser.add_argument("--rounds", type=int, default=9, help="number of times that each step is taken, in turns")
    parser.add_argument("--ranks", type=int, default=2, help="number of ranks")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        plan = _plan(Path(folder), given.backend)
        runners = {
            name: ready(stack.enter_context(closing(make_runner(each)))) for name, each in _plans(plan, given.ranks)
        }
        text = _table(runners, given.rounds)
    print(text)
    if given.write:
        (RANKS if given.backend == "torch" else CPU_RANKS).write(text)


def _plan(folder: Path, backend: str) -> CorePlan:
    make_tiny_llama(
        folder, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16,
        num_key_value_heads=4,
    )  # fmt: skip
    return CorePlan(
        path=str(folder), format=ModelFormat.AUTO, backend=backend, compute_unit=ComputeUnit.CPU, num_threads=THREADS,
        max_batch=8, max_length=512, num_blocks=256,
    )  # fmt: skip


def _plans(plan: CorePlan, ranks: int) -> Iterator[tuple[str, CorePlan]]:
    yield f"1 process, {THREADS} threads", plan
    for mode in TensorParallelMode:
        yield f"{ranks} ranks, {mode}", replace(plan, tensor_parallel=ranks, tensor_parallel_mode=mode)


def _steps() -> Mapping[str, Sequence[SequenceStep]]:
    def decoded(sequence: int) -> SequenceStep:
        return SequenceStep((7,), CONTEXT, tuple(range(sequence * 8, sequence * 8 + 8)), _GREEDY)

    return {
        "1 id": [decoded(0)],
        "8 sequences": [decoded(each) for each in range(8)],
        "256 ids of a prompt": [SequenceStep(tuple(range(256)), 0, tuple(range(100, 116)), _GREEDY)],
    }


def _table(runners: Mapping[str, Runner], rounds: int) -> str:
    lines = [
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC. {cpu_name()}; medians of {rounds} in turns, in ms.",
        "",
        f"| step | {' | '.join(runners)} |",
        f"|---|{'---:|' * len(runners)}",
    ]
    for name, steps in _steps().items():
        taken: dict[str, list[float]] = {each: [] for each in runners}
        for _ in range(rounds):
            for each, runner in runners.items():
                began = time.perf_counter()
                runner.run(steps)
                taken[each].append(time.perf_counter() - began)
        lines.append(f"| {name} | {' | '.join(f'{1e3 * statistics.median(all_):.1f}' for all_ in taken.values())} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
