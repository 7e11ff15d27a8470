"""Measure what a cached prefix saves: time to the first token, prompt in the pool, in host memory, and computed.

    make bench-prefix         or       python -m bench.service.prefix [--rounds 12] [--no-write]

SmolLM2 in Q4_1 on the cpu backend, in this process, with a pool that holds one prompt of 1,000 ids and its answer, and
a host tier for eight. Two prompts take turns, so that each crowds the other out of the pool: the first answer after a
turn finds its prompt in host memory, and the 62 blocks that leave for it are copied in the same step; asked once more,
the prompt lies in the pool. A third request computes it without the cache, which pushes it out again, and a fourth
brings it back, so that the next turn finds the pool full. The time is the client's, from the start of a request to its
first token. What the answers say of `prefix_len_gpu` and `prefix_len_cpu` is checked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from headrace import Client

from bench.common.machine import cpu_name
from bench.common.models import BenchModels
from bench.common.page import PREFIX, measurement
from bench.common.quietness import Quietness

MODEL = "smol"
IDS, NEW = 1_000, 2
_BLOCKS = -(-(IDS + NEW) // 16)
_REUSED = (IDS - 1) // 16 * 16
WAYS = {"in the pool": (_REUSED, 0), "in host memory": (0, _REUSED), "computed": (0, 0)}
"""Number of tokens from the pool, and from host memory."""
MODES = ("DEFAULT", "INT8", "UINT4")


@dataclass
class Row:
    """Results of one format of keys and values: milliseconds by source, and bytes of a block."""

    mode: str
    block_bytes: int = 0
    found: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})


def measured(mode: str, rounds: int, quietness: Quietness) -> Row:
    """Measure one row, over a number of turns."""
    row = Row(mode)
    with _running(mode, row) as client:
        prompts = [[1 + (7 * seed + 11 * place) % 40_000 for place in range(IDS)] for seed in (1, 2)]
        for number in range(-2, rounds):
            ids = prompts[number % 2]
            quietness.wait()
            spent = {
                "in host memory": _first_token(client, ids, WAYS["in host memory"] if number >= 0 else None),
                "in the pool": _first_token(client, ids, WAYS["in the pool"]),
                "computed": _first_token(client, ids, WAYS["computed"], use_prefix_cache=False),
            }
            _first_token(client, ids, None)
            for way, seconds in spent.items():
                if number >= 0:
                    row.found[way].append(1e3 * seconds)
    return row


@contextmanager
def _running(mode: str, row: Row) -> Iterator[Client]:
    fields: dict[str, Any] = {"max_batch": 1, "max_length": IDS + NEW, "kv_cache_mode": mode}
    with Client("inprocess:") as client:
        path = str(BenchModels.chosen().packaged)
        client.install_model(MODEL, path=path, num_blocks=_BLOCKS, num_host_blocks=8 * _BLOCKS, **fields)
        client.start_model(MODEL)
        [model] = client.get_model(MODEL)
        assert model.effective is not None, "it runs"
        row.block_bytes = model.effective.kv_bytes // _BLOCKS
        yield client


def _first_token(client: Client, ids: list[int], expected: tuple[int, int] | None, **fields: Any) -> float:
    """Return the seconds to the first token.

    Args:
        expected: tokens that must come from the pool, and from host memory; None: any.
    """
    began = time.perf_counter()
    handle, queue = client.start_request(MODEL, ids=ids, max_new_tokens=NEW, do_sample=False, ignore_eos=True, **fields)
    first = queue.Get()
    seconds = time.perf_counter() - began
    for _ in queue:
        pass
    client.release_request(handle)
    if first is None or (expected is not None and (first.prefix_len_gpu, first.prefix_len_cpu) != expected):
        raise RuntimeError(f"{first} where (pool, host) is to be {expected}")
    return seconds


def table(rows: list[Row]) -> str:
    """Return the section of the page."""
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    count = len(rows[0].found["computed"])
    lines = [
        f"{date}. {cpu_name()}. Prompts of {IDS:,} ids, medians of {count}, milliseconds to the first token.",
        "",
        f"| keys and values | {' | '.join(WAYS)} | MiB of {_REUSED // 16} blocks |",
        "|---" * (len(WAYS) + 2) + "|",
    ]
    for row in rows:
        times = " | ".join(f"{median(values):.1f}" for values in row.found.values())
        lines.append(f"| {row.mode} | {times} | {row.block_bytes * (_REUSED // 16) / 2**20:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the page's section."""
    parser = measurement(__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    text = table([measured(mode, arguments.rounds, Quietness(2.0)) for mode in MODES])
    print(text)
    if arguments.write:
        PREFIX.write(text)


if __name__ == "__main__":
    main()
