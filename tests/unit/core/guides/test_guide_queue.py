"""The order in which grammars are compiled: owners in turn, quick ones first, each within memory."""

from __future__ import annotations

from headrace_engine.core.guides.compile_queue import GuideQueue
from headrace_engine.ipc.commands import AddSequence
from headrace_engine.sampling_params import SamplingParams


class Queue:
    """A queue with its own clock."""

    def __init__(self) -> None:
        self.now, self.keys = 0.0, 0
        self.queue = GuideQueue(lambda: self.now)

    def add(self, owner: str, seconds: float = 0.0, size: int = 0) -> AddSequence:
        self.keys += 1
        request = AddSequence(
            self.keys, (1,), SamplingParams(), 1, grammar="g", grammar_seconds=seconds, grammar_bytes=size, owner=owner
        )
        self.queue.add(request)
        return request

    def take(self, memory: int = 1 << 60) -> int:
        job = self.queue.take(lambda request: request.grammar_bytes <= memory)
        assert job is not None
        return job.request.key


def test_f8_slow_grammars_of_one_owner_delay_another_by_one() -> None:
    queue = Queue()
    for _ in range(20):
        queue.add("greedy", 0.3)
    queue.take()
    other = queue.add("other")
    assert other.key in (queue.take(), queue.take())


def test_f8_owners_take_turns() -> None:
    queue = Queue()
    owners = {queue.add(owner, 0.3).key: owner for owner in "aaaabbbc"}
    assert [owners[queue.take()] for _ in owners] == list("abcababa")


def test_f8_quick_ones_overtake_slow_ones_of_the_same_owner() -> None:
    """Where all callers are one owner, as without keys behind a gateway."""
    queue = Queue()
    slow = [queue.add("", 0.3).key for _ in range(5)]
    quick = queue.add("", 0.001).key
    assert [queue.take() for _ in range(6)] == [quick, *slow]


def test_f8_no_grammar_is_overtaken_for_ever() -> None:
    queue = Queue()
    slow = queue.add("", 0.3).key
    taken = []
    for _ in range(100):
        queue.now += 0.1
        queue.add("", 0.001)
        taken.append(queue.take())
    assert slow in taken


def test_a_discarded_sequence_is_never_compiled() -> None:
    queue = Queue()
    first, dropped, last = (queue.add("") for _ in range(3))
    queue.queue.discard(dropped)
    queue.queue.discard(dropped)
    assert [queue.take(), queue.take()] == [first.key, last.key]


def test_f6_only_what_exceeds_memory_waits() -> None:
    queue = Queue()
    large, small = queue.add("a", size=100).key, queue.add("b", size=1).key
    assert queue.take(memory=50) == small
    assert queue.take() == large


def test_a_closed_queue_is_empty() -> None:
    queue = Queue()
    queue.add("a")
    queue.queue.close()
    assert queue.queue.take(lambda _: True) is None
