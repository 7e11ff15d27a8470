"""Tokens of quick steps are told together: never the first one late, never the end, and none of them for long."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from headrace_engine.core.paced_link import PacedLink
from headrace_engine.ipc.commands import CoreCommand, Ping
from headrace_engine.ipc.messages import CoreMessage, Pong, StepBegun
from headrace_engine.ipc.step_output import Ended, PromptPiece, Scheduled, StepOutput
from headrace_engine.result_types import FinishReason
from headrace_engine.stat_types import CoreStat

INTERVAL = 0.016
MOMENT = 0.001


class Wire:
    """What came, message by message and all at once."""

    def __init__(self) -> None:
        self.came: list[Sequence[CoreMessage]] = []

    def receive(self, block: bool) -> list[CoreCommand]:
        return [Ping(1)]

    def send(self, *messages: CoreMessage) -> None:
        self.came.append(messages)


class Rig:
    """A link on which the first tokens of two sequences were told just now."""

    def __init__(self, interval: float = INTERVAL) -> None:
        self.now = 50.0
        self.wire = Wire()
        self.link = PacedLink(self.wire, interval, lambda: self.now)
        self.link.send(output(1, 2))
        self.sent()

    def sent(self) -> list[CoreMessage]:
        """What came since the last look, which came at once."""
        came, self.wire.came = self.wire.came, []
        assert len(came) <= 1
        return [message for messages in came for message in messages]


def output(*keys: int, **more: object) -> StepOutput:
    return StepOutput(keys=list(keys), token_ids=[7] * len(keys), **more)  # type: ignore[arg-type]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_tokens_within_the_interval_wait_for_the_next_step(rig: Rig) -> None:
    steps = [output(1, 2), output(1, 2), output(1)]
    for step, passed in zip(steps, (INTERVAL / 2, INTERVAL / 4, INTERVAL / 4), strict=True):
        assert rig.sent() == []
        rig.now += passed
        rig.link.send(step)
    assert rig.sent() == steps


def test_a_step_longer_than_the_interval_is_sent_at_once(rig: Rig) -> None:
    for _ in range(3):
        rig.now += INTERVAL + MOMENT
        rig.link.send(output(1, 2))
        assert rig.sent() == [output(1, 2)]


def test_the_first_token_of_a_sequence_takes_along_what_waits(rig: Rig) -> None:
    rig.link.send(output(1, 2))
    rig.link.send(output(1, 2, 3))
    assert rig.sent() == [output(1, 2), output(1, 2, 3)]


@pytest.mark.parametrize(
    "news",
    [
        {"ended": [Ended(1, FinishReason.EOS, "")]},
        {"scheduled": [Scheduled(4, 0, 0)]},
        {"preempted": [2]},
        {"prompts": [PromptPiece(1, 1, [-0.5], [], [])]},
    ],
    ids=lambda news: next(iter(news)),
)
def test_what_is_more_than_tokens_never_waits(rig: Rig, news: dict[str, object]) -> None:
    rig.link.send(output(1, 2))
    rig.link.send(output(1, 2, **news))
    assert rig.sent() == [output(1, 2), output(1, 2, **news)]


@pytest.mark.parametrize("message", [Pong(3), StepBegun([1, 2, 3])], ids=lambda message: type(message).__name__)
def test_every_other_message_goes_at_once_and_in_order(rig: Rig, message: CoreMessage) -> None:
    rig.link.send(output(1, 2))
    rig.link.send(message)
    assert rig.sent() == [output(1, 2), message]


def test_a_late_landing_step_does_not_wait_for_new_sequences(rig: Rig) -> None:
    """Their prompts may take long. Where nobody is new it is a step like others."""
    rig.link.send(StepBegun([1]))
    assert rig.sent() == [StepBegun([1])]
    rig.link.send(output(1, 2))
    assert rig.sent() == []
    rig.link.send(StepBegun([1, 2, 3]))
    assert rig.sent() == [output(1, 2), StepBegun([1, 2, 3])]
    rig.link.send(output(1, 2))
    assert rig.sent() == [output(1, 2)]


def test_nothing_waits_while_there_is_nothing_to_compute(rig: Rig) -> None:
    rig.link.send(output(1, 2))
    assert rig.link.receive(block=False) == [Ping(1)]
    assert rig.sent() == []
    assert rig.link.receive(block=True) == [Ping(1)]
    assert rig.sent() == [output(1, 2)]


def test_gauges_of_a_step_without_tokens_are_told_at_once(rig: Rig) -> None:
    """None may follow for long: the core waits for guides, and for nobody's word."""
    rig.link.send(output(stat=CoreStat(waiting=1)))
    assert rig.sent() == [output(stat=CoreStat(waiting=1))]


def test_without_an_interval_every_step_is_told() -> None:
    rig = Rig(interval=0.0)
    for _ in range(3):
        rig.link.send(output(1, 2))
        assert rig.sent() == [output(1, 2)]
