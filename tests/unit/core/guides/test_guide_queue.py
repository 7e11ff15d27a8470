"""Whose grammar is compiled next: owners in turn, quick ones before slow ones, and each within memory."""

from __future__ import annotations

from headrace_engine.commands import AddSequence
from headrace_engine.core.guides.compile_queue import GuideQueue
from headrace_engine.sampling_params import SamplingParams


class Line:
    """A line with a clock of its own."""

    def __init__(self) -> None:
        self.now, self.keys = 0.0, 0
        self.line = GuideQueue(lambda: self.now)

    def add(self, owner: str, seconds: float = 0.0, size: int = 0) -> AddSequence:
        self.keys += 1
        request = AddSequence(
            self.keys, (1,), SamplingParams(), 1, grammar="g", grammar_seconds=seconds, grammar_bytes=size, owner=owner
        )
        self.line.add(request)
        return request

    def take(self, room: int = 1 << 60) -> int:
        job = self.line.take(lambda request: request.grammar_bytes <= room)
        assert job is not None
        return job.request.key


def test_f8_slow_grammars_of_one_owner_delay_another_by_one() -> None:
    line = Line()
    for _ in range(20):
        line.add("greedy", 0.3)
    line.take()
    other = line.add("other")
    assert other.key in (line.take(), line.take())


def test_f8_owners_have_turns() -> None:
    line = Line()
    owners = {line.add(owner, 0.3).key: owner for owner in "aaaabbbc"}
    assert [owners[line.take()] for _ in owners] == list("abcababa")


def test_f8_quick_ones_overtake_slow_ones_of_the_same_owner() -> None:
    """Where all callers are one owner, as without keys behind a gateway."""
    line = Line()
    slow = [line.add("", 0.3).key for _ in range(5)]
    quick = line.add("", 0.001).key
    assert [line.take() for _ in range(6)] == [quick, *slow]


def test_f8_nobody_is_overtaken_for_ever() -> None:
    line = Line()
    slow = line.add("", 0.3).key
    taken = []
    for _ in range(100):
        line.now += 0.1
        line.add("", 0.001)
        taken.append(line.take())
    assert slow in taken


def test_what_is_wanted_no_more_is_never_begun() -> None:
    line = Line()
    first, dropped, last = (line.add("") for _ in range(3))
    line.line.discard(dropped)
    line.line.discard(dropped)
    assert [line.take(), line.take()] == [first.key, last.key]


def test_f6_what_has_no_room_waits_and_what_has_does_not() -> None:
    line = Line()
    large, small = line.add("a", size=100).key, line.add("b", size=1).key
    assert line.take(room=50) == small
    assert line.take() == large


def test_a_line_that_is_closed_has_nobody() -> None:
    line = Line()
    line.add("a")
    line.line.close()
    assert line.line.take(lambda _: True) is None
