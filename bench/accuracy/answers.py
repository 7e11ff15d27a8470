"""Measure what quantized keys and values cost answers: after a long prompt, and after a few turns of a conversation.

    make bench-accuracy       or       python -m bench.accuracy.answers [--no-write]

SmolLM2 is asked about `tests/texts/mill.txt`, which it is given whole, and talks to somebody for a few turns. Its
answers with weights, keys and values in float32 are the reference. Every other way reads the same prompts and answers,
the cpu backend id after id and the torch backend answer by answer; the cpu backend gives its own answers there as well.

`same` is the share of the answers' ids at which the most likely one is the reference's, `cosine` the median of the
logits' there, `alike` the median number of ids after which its own answers part from the reference's.
Results go to `bench/results/answers.json` and into accuracy.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from headrace_engine.config import ComputeDtype, KvCacheMode
from support.backends.cpu_sequences import CpuLanes, cpu_model
from support.backends.torch_sequences import Lane, Lanes, load
from support.models.text_accuracy import MOST_ROWS, smollm2
from torch import Tensor

from bench.accuracy.conversations import conversations
from bench.common.page import ANSWERS, RESULTS, measurement

ANSWER = 48
"""Ids per answer."""

_LENGTH = 4096
_TOKENS = 12_288
_BLOCK = 16
_CHUNK = 512
_JSON = RESULTS / "answers.json"

WAYS: Sequence[tuple[str, KvCacheMode]] = (
    ("cpu", KvCacheMode.DEFAULT),
    ("cpu", KvCacheMode.INT8),
    ("cpu", KvCacheMode.UINT4),
    ("torch", KvCacheMode.INT8),
    ("torch", KvCacheMode.UINT4),
)
"""Backends and modes; the torch backend's default is the reference within rounding."""


@dataclass
class Turn:
    """Ids of a turn, and the reference's answer.

    Attributes:
        logits: the reference's, before each id of the answer: [ids, vocab].
    """

    asked: list[int]
    answer: list[int]
    logits: Tensor


@dataclass(frozen=True)
class Nearness:
    """Similarity of answers to the reference's; `alike` is None for ways that do not generate their own."""

    same: float
    cosine: float
    alike: float | None


@dataclass(frozen=True)
class Row:
    """One way."""

    backend: str
    mode: str
    isa: str
    long: Nearness
    turns: Nearness


def main() -> None:
    """Measure, print and write the results."""
    arguments = measurement(__doc__).parse_args()
    path = smollm2()
    asked = conversations(path)
    with lanes_of(path, "cpu", dtype=ComputeDtype.FLOAT32) as (lanes, _):
        long, talks = (answered(Reader(lanes), each) for each in asked)
    rows = []
    for backend, mode in WAYS:
        with lanes_of(path, backend, kv_cache_mode=mode) as (lanes, isa):
            reader, own = Reader(lanes), backend == "cpu"
            near = [nearness(reader, each, own=own) for each in (long, talks)]
            rows.append(Row(backend, mode.value, isa, *near))
        print(_line(rows[-1]), flush=True)
    if arguments.write:
        _write(rows, long, talks)


@contextmanager
def lanes_of(path: Path, backend: str, **changes: Any) -> Iterator[tuple[Lanes, str]]:
    """Return sequences on a backend, and its instruction set or number format."""
    if backend == "torch":
        yield (
            Lanes(load(path, num_threads=0, max_length=_LENGTH, **changes), tokens=_TOKENS, block_size=_BLOCK),
            "float32",
        )
        return
    with cpu_model(path, max_length=_LENGTH, max_batch=MOST_ROWS, **changes) as model:
        yield CpuLanes(model, tokens=_TOKENS, block_size=_BLOCK), model.cpu.isa.name.lower()


class Reader:
    """Reads conversations, each in a sequence of its own that shares blocks computed by others.

    Args:
        lanes: sequences on the backend.
    """

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._known: list[Lane] = []

    def begin(self, ids: Sequence[int], new_tokens: int) -> Lane:
        """Return a sequence that has read these ids, and has blocks for more."""
        pairs = [(_common(lane.ids[: lane.computed], ids[:-1]) // _BLOCK * _BLOCK, lane) for lane in self._known]
        shared, lane = max(pairs, key=lambda pair: pair[0], default=(0, None))
        begun = self._lanes.add(ids, new_tokens=new_tokens, shared=lane if shared else None, shared_tokens=shared)
        self._known.append(begun)
        self._read(begun)
        return begun

    def ask(self, lane: Lane, ids: Sequence[int]) -> None:
        """Read the next message."""
        lane.ids += ids
        self._read(lane)

    def answer(self, lane: Lane) -> tuple[list[int], Tensor]:
        """Generate the most likely ids; return them, and the logits before each."""
        first = len(lane.scores) - 1
        for _ in range(ANSWER):
            lane.ids.append(int(lane.scores[-1].argmax()))
            self._lanes.step((lane, 1))
        return lane.ids[-ANSWER:], torch.stack(lane.scores[first : first + ANSWER])

    def follow(self, lane: Lane, ids: Sequence[int]) -> Tensor:
        """Read an answer; return the logits before each of its ids."""
        before = lane.scores[-1]
        after = self._lanes.follow(lane, ids)
        lane.scores.append(after[-1])
        return torch.cat([before.unsqueeze(0), after[:-1]])

    def _read(self, lane: Lane) -> None:
        while lane.waiting:
            self._lanes.step((lane, min(_CHUNK, lane.waiting)))


def answered(reader: Reader, talks: Sequence[Sequence[list[int]]]) -> list[list[Turn]]:
    """Return conversations with the reader's answers to the given messages of each turn."""
    found = []
    for asked in talks:
        lane, turns = reader.begin(asked[0], _new_tokens(asked)), []
        for number, ids in enumerate(asked):
            if number:
                reader.ask(lane, ids)
            turns.append(Turn(ids, *reader.answer(lane)))
        found.append(turns)
    return found


def nearness(reader: Reader, talks: Sequence[Sequence[Turn]], *, own: bool) -> Nearness:
    """Measure the similarity of a reader, on the reference's conversations, to the reference.

    Args:
        own: also generate its own answers.
    """
    got, expected, alike = [], [], []
    for turns in talks:
        lane = reader.begin(turns[0].asked, _new_tokens([turn.asked for turn in turns]))
        for number, turn in enumerate(turns):
            if number:
                reader.ask(lane, turn.asked)
            if own:
                mine, _ = reader.answer(reader.begin(lane.ids, ANSWER))
                alike.append(_common(mine, turn.answer))
            got.append(reader.follow(lane, turn.answer))
            expected.append(turn.logits)
    logits, reference = torch.cat(got), torch.cat(expected)
    return Nearness(
        same=(logits.argmax(1) == reference.argmax(1)).double().mean().item(),
        cosine=torch.nn.functional.cosine_similarity(logits, reference).median().item(),
        alike=median(alike) if own else None,
    )


def _new_tokens(asked: Sequence[Sequence[int]]) -> int:
    """Return the number of ids after the first turn's."""
    return sum(map(len, asked[1:])) + len(asked) * ANSWER


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    pairs = zip(first, second, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _write(rows: Sequence[Row], long: Sequence[Sequence[Turn]], talks: Sequence[Sequence[Turn]]) -> None:
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    content = {"date": date, "answer": ANSWER, "ways": [asdict(row) for row in rows]}
    _JSON.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    head = (
        f"{date}, {rows[0].isa}. SmolLM2-135M-Instruct in Q4_1: {len(long)} answers of {ANSWER} ids after prompts of "
        f"{min(len(turns[0].asked) for turns in long)} ids and more, and {sum(map(len, talks))} in {len(talks)} "
        f"conversations of {len(talks[0])} turns."
    )
    columns = [
        "| backend | keys and values | long prompt: same | cosine | alike | turns: same | cosine | alike |",
        "|---|---|---|---|---|---|---|---|",
    ]
    ANSWERS.write("\n".join([head, "", *columns, *map(_line, rows)]))


def _line(row: Row) -> str:
    cells = [
        f"{near.same:.1%} | {near.cosine:.5f} | {'–' if near.alike is None else f'{near.alike:g} of {ANSWER}'}"
        for near in (row.long, row.turns)
    ]
    return f"| {row.backend} | {row.mode} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
