"""What one session may take of what all sessions share, and what a crowd of channels costs."""

from __future__ import annotations

import pytest
from headrace_engine.engine.sessions.session_channels import Refused
from headrace_engine.errors import ResourceExhausted
from support.engine.session_rig import SessionRig


@pytest.fixture
async def rig() -> SessionRig:
    return SessionRig(update_bytes=100_000)


async def test_f13_beyond_a_sessions_share_an_attach_is_refused_alone(rig: SessionRig) -> None:
    rig.shares.limit = 8
    rig.story()
    for number in range(1, 8):
        rig.attach(number)
    update = await rig.update()
    assert [attached.channel for attached in update.attached] == [1, 2, 3, 4, 5, 6]
    (failure,) = update.errors
    assert (failure.channel, type(failure.error)) == (7, ResourceExhausted)
    text = "this session reads 6 sequences; of 8 for all 2 are left, which others need: detach some, or try again later"
    assert failure.error.message == text
    assert failure.error.retry_after == 1.0


async def test_f13_a_share_is_given_back_with_each_channel(rig: SessionRig) -> None:
    rig.story()
    rig.attach(1)
    rig.attach(2, "unknown")
    rig.attach(3)
    assert rig.shares.taken == 2
    await rig.update()
    assert rig.shares.taken == 2
    rig.session.detach(1)
    rig.session.detach(1)
    assert rig.shares.taken == 1
    rig.session.close()
    assert (rig.shares.taken, rig.shares.parties) == (0, 0)


async def test_f13_attaches_that_fail_take_no_share(rig: SessionRig) -> None:
    """However many wait for a client that fetches nothing, others may read."""
    rig.shares.limit = 8
    rig.story()
    for number in range(1, 20):
        rig.attach(number, "unknown")
    assert rig.shares.taken == 0
    rig.attach(20)
    rig.session.lose(20, ResourceExhausted("too large"))
    assert rig.shares.taken == 0
    rig.session.close()
    assert (rig.shares.taken, rig.shares.parties) == (0, 0)


async def test_f13_one_sequence_has_so_many_readers(rig: SessionRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token is told to all of them, so their number is bounded whoever they are."""
    monkeypatch.setattr("headrace_engine.engine.sessions.session_reader.MAX_FOLLOWERS", 2)
    story = rig.story()
    for number in (1, 2, 3):
        rig.attach(number)
    update = await rig.update()
    assert [failure.channel for failure in update.errors] == [3]
    assert "this sequence has 2 readers in sessions" in update.errors[0].error.message
    assert story.readers == 2


@pytest.mark.parametrize("count", [500, 4000])
async def test_f12_what_waits_is_told_in_linear_time(
    rig: SessionRig, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Each channel is looked up as often for many that wait as for few, however many messages they take."""
    looks = 0

    def look(channel: Refused) -> int:
        nonlocal looks
        looks += 1
        return id(channel)

    monkeypatch.setattr(Refused, "__hash__", look)
    for number in range(1, count + 1):
        rig.attach(number, "unknown")
    messages = 0
    while await rig.poll() is not None:
        messages += 1
    assert messages > count / 20
    assert looks <= 6 * count
