"""Who may have how much waiting, and what those are told for whom there is no place."""

from __future__ import annotations

import pytest
from headrace_engine.engine.requests.requests import Request
from headrace_engine.engine.results.budget import log_bytes
from headrace_engine.errors import InvalidArgument, ResourceExhausted
from headrace_engine.result_types import FinishReason
from support.engine.rig import NAME, Rig


async def fill(rig: Rig, caller: str, n: int = 1, owner: str = "") -> tuple[int, ResourceExhausted]:
    """Start requests until one is refused; how many sequences were accepted, and the refusal."""
    count = 0
    try:
        while True:
            await rig.start(config={"n": n}, caller=caller, owner=owner)
            count += n
    except ResourceExhausted as refusal:
        return count, refusal


def waiting(rig: Rig) -> int:
    return rig.engine._models.get(NAME).outputs.waiting


async def run_full(rig: Rig, max_waiting: int) -> None:
    """A model whose batch is taken by somebody else."""
    core = await rig.run(max_batch=1, max_waiting=max_waiting)
    await rig.start(caller="runs")
    core.step(scheduled={rig.added().key: 0})


async def test_a6_one_caller_cannot_fill_the_queue(rig: Rig) -> None:
    """Whoever comes first leaves a quarter; the next one has of it what the first had of all."""
    await run_full(rig, 256)
    count, refusal = await fill(rig, "first")
    assert count == 192
    text = (
        "192 requests are waiting (max_waiting 256), 192 of them of this caller, whose share is used up. Try again in"
    )
    assert refusal.message.startswith(text)
    assert (refusal.reason, refusal.max_waiting) == ("QUEUE_FULL", 256)
    assert [(await fill(rig, caller))[0] for caller in ("second", "third", "fourth")] == [48, 12, 3]


async def test_a6_sequences_are_counted_and_not_requests(rig: Rig) -> None:
    await run_full(rig, 256)
    count, refusal = await fill(rig, "first", n=64)
    assert count == 192
    text = (
        "192 sequences of 3 requests are waiting (max_waiting 256), 192 of them of this caller, whose share is used up"
    )
    assert refusal.message.startswith(text)
    count, _ = await fill(rig, "second", n=10)
    assert count == 40
    await rig.start(caller="third")
    assert waiting(rig) <= 256


@pytest.mark.parametrize("n", [1, 2, 7])
async def test_a6_max_waiting_is_never_passed(rig: Rig, n: int) -> None:
    await run_full(rig, 10)
    for caller in "abcdefghijkl":
        await fill(rig, caller, n)
        assert waiting(rig) <= 10


async def test_a6_who_has_none_waiting_gets_the_next_place(rig: Rig) -> None:
    """Those who filled the queue take none of what becomes free before a newcomer has come."""
    await run_full(rig, 4)
    for caller in "abcd":
        await fill(rig, caller)
    assert waiting(rig) == 4
    with pytest.raises(ResourceExhausted, match=r"4 requests are waiting \(max_waiting 4\)\. Try again"):
        await rig.start(caller="new")
    rig.core.step(scheduled={rig.core.added[1].key: 0})
    with pytest.raises(ResourceExhausted, match="of this caller, whose share is used up"):
        await rig.start(caller="a")
    await rig.start(caller="new")


async def test_a6_an_owner_is_one_caller_whatever_its_connections(rig: Rig) -> None:
    await run_full(rig, 8)
    assert (await fill(rig, "one", owner="ann"))[0] == 6
    assert (await fill(rig, "two", owner="ann"))[0] == 0
    assert (await fill(rig, "two", owner="bob"))[0] == 1


async def test_a6_a_share_is_had_again_after_the_end_and_a_core_lost(rig: Rig) -> None:
    await run_full(rig, 8)
    await fill(rig, "a")
    for added in rig.core.added[1:]:
        rig.core.step(ended={added.key: FinishReason.EOS})
    assert (await fill(rig, "a"))[0] == 6
    outputs = rig.engine._models.get(NAME).outputs
    outputs.requeue(outputs.all())
    assert (outputs.queue.of("a"), outputs.queue.requests_of("a"), outputs.queue.requests) == (6, 6, 7)


async def test_a6_what_never_finds_a_place_is_no_matter_of_waiting(rig: Rig) -> None:
    await rig.run(max_batch=2, max_waiting=4)
    with pytest.raises(InvalidArgument, match="= 6 never starts: 2 sequences are computed at once") as caught:
        await rig.start(config={"n": 6})
    assert caught.value.violations[0].field == "config.n"
    with pytest.raises(InvalidArgument) as caught:
        await rig.start(config={"n": 1, "best_of": 6})
    assert caught.value.violations[0].field == "config.best_of"
    await rig.start(config={"n": 5})


class TestRoom:
    """When an owner whose results are full should come back."""

    async def refused(self, rig: Rig) -> float:
        with pytest.raises(ResourceExhausted) as caught:
            await rig.start(config={"max_new_tokens": 40})
        assert caught.value.reason == "RESULTS_FULL"
        assert caught.value.retry_after is not None
        return caught.value.retry_after

    async def test_when_a_running_one_should_end(self, rig: Rig) -> None:
        core = await rig.run(max_result_bytes=log_bytes(40))
        await rig.start(config={"max_new_tokens": 40})
        key = rig.added().key
        for _ in range(11):
            core.step({key: 1}, scheduled={key: 0})
            rig.clock.advance(0.5)
        assert await self.refused(rig) == pytest.approx(29 * 0.55)

    async def test_when_the_lease_of_one_that_ended_is_over(self, rig: Rig) -> None:
        core = await rig.run(max_result_bytes=log_bytes(40))
        await rig.start(config={"max_new_tokens": 40})
        core.step({rig.added().key: 1}, ended={rig.added().key: FinishReason.EOS})
        rig.clock.advance(570)
        assert await self.refused(rig) == pytest.approx(30)

    async def test_a_while_where_nobody_knows(self, rig: Rig) -> None:
        """Somebody is there for all that ended."""
        core = await rig.run(max_result_bytes=log_bytes(40))
        accepted = await rig.start(config={"max_new_tokens": 40})
        request: Request = rig.engine._registry.find(accepted.handle, "")
        request.arrive()
        core.step({rig.added().key: 1}, ended={rig.added().key: FinishReason.EOS})
        assert await self.refused(rig) >= 0.1
        request.leave()
