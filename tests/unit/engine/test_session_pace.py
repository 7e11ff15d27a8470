"""Tokens of quick steps are told together: never the first one late, never the end, and none of them for long."""

from __future__ import annotations

import asyncio

import pytest
from headrace_engine.result_types import FinishReason
from unit.engine.session_bench import SessionBench, Story, rows_of

INTERVAL = 0.016
MOMENT = 0.001


@pytest.fixture
async def bench() -> SessionBench:
    return SessionBench(stream_interval=INTERVAL)


@pytest.fixture
async def story(bench: SessionBench) -> Story:
    """A sequence whose first token was told just now."""
    story = bench.story()
    bench.attach()
    await bench.update()
    story.say("first")
    assert await told(bench) == ["first"]
    return story


async def told(bench: SessionBench) -> list[str]:
    update = await bench.poll()
    return [] if update is None else [row.text for row in rows_of(update.rows)]


async def test_a_token_within_the_interval_waits_for_the_first_step_after_it(bench: SessionBench, story: Story) -> None:
    bench.timers.advance(INTERVAL / 2)
    story.say("a")
    assert await told(bench) == []
    bench.timers.advance(INTERVAL / 2)
    assert await told(bench) == []
    story.say("b")
    assert await told(bench) == ["ab"]


async def test_a_step_that_takes_longer_than_the_interval_is_told_at_once(bench: SessionBench, story: Story) -> None:
    for text in "abc":
        bench.timers.advance(INTERVAL)
        story.say(text)
        assert await told(bench) == [text]


async def test_without_a_further_step_a_token_waits_twice_the_interval(bench: SessionBench, story: Story) -> None:
    bench.timers.advance(MOMENT)
    story.say("a")
    bench.timers.advance(2 * INTERVAL - 2 * MOMENT)
    assert await told(bench) == []
    bench.timers.advance(2 * MOMENT)
    assert await told(bench) == ["a"]


async def test_the_time_counts_from_the_newest_update(bench: SessionBench, story: Story) -> None:
    story.say("a")  # An alarm is set for it.
    bench.timers.advance(INTERVAL)
    story.say("b")
    assert await told(bench) == ["ab"]
    bench.timers.advance(MOMENT)
    story.say("c")
    bench.timers.advance(INTERVAL)
    assert await told(bench) == []
    bench.timers.advance(INTERVAL)
    assert await told(bench) == ["c"]


async def test_the_end_never_waits_nor_what_stands_before_it(bench: SessionBench, story: Story) -> None:
    story.say("a")
    assert await bench.poll() is None
    end = story.end(FinishReason.STOP_WORD)
    update = await bench.update()
    assert [row.text for row in rows_of(update.rows)] == ["a"]
    assert [each.end for each in update.ends] == [end]


async def test_the_first_token_of_another_sequence_takes_along_what_waits(bench: SessionBench, story: Story) -> None:
    other = bench.story("other")
    bench.attach(2, "other")
    await bench.update()
    story.say("a")
    assert await told(bench) == []
    other.say("b")
    assert sorted(await told(bench)) == ["a", "b"]


async def test_a_release_and_an_answer_to_a_ping_do_not_wait(bench: SessionBench, story: Story) -> None:
    story.say("a")
    bench.session.ping(7)
    update = await bench.update()
    assert (update.pong, [row.text for row in rows_of(update.rows)]) == (7, ["a"])
    story.say("b")
    story.log.release()
    assert (await bench.update()).errors


async def test_what_did_not_fit_into_an_update_comes_with_the_next_at_once(story: Story) -> None:
    bench = SessionBench(stream_interval=INTERVAL, update_bytes=200)
    story = bench.story()
    bench.attach()
    await bench.update()
    story.say(*("x" * 60 for _ in range(9)))
    texts = []
    while part := await told(bench):
        texts += part
    assert "".join(texts) == "x" * 540
    assert len(texts) > 1


async def test_somebody_who_waits_already_is_woken_when_it_is_due(bench: SessionBench, story: Story) -> None:
    waiting = asyncio.create_task(bench.session.next())
    story.say("a")
    await asyncio.sleep(0)
    assert not waiting.done()
    bench.timers.advance(2 * INTERVAL)
    update = await waiting
    assert update is not None
    assert [row.text for row in rows_of(update.rows)] == ["a"]


async def test_a_session_that_is_closed_sets_no_alarm_off(bench: SessionBench, story: Story) -> None:
    story.say("a")
    armed = bench.timers.armed  # Its own alarm, and that of a silent client.
    bench.session.close()
    assert bench.timers.armed == armed - 2
