"""Who may have how much waiting, and what those are told for whom there is no place."""

from __future__ import annotations

import pytest
from headrace_engine.engine.requests import Request
from headrace_engine.engine.result_room import log_bytes
from headrace_engine.errors import InvalidArgument, ResourceExhausted
from headrace_engine.result_types import FinishReason
from unit.engine.bench import NAME, Bench


async def fill(bench: Bench, caller: str, n: int = 1, owner: str = "") -> tuple[int, ResourceExhausted]:
    """Start requests until one is refused; how many sequences were accepted, and the refusal."""
    count = 0
    try:
        while True:
            await bench.start(config={"n": n}, caller=caller, owner=owner)
            count += n
    except ResourceExhausted as refusal:
        return count, refusal


def waiting(bench: Bench) -> int:
    return bench.engine._models.get(NAME).outputs.waiting


async def run_full(bench: Bench, max_waiting: int) -> None:
    """A model whose batch is taken by somebody else."""
    core = await bench.run(max_batch=1, max_waiting=max_waiting)
    await bench.start(caller="runs")
    core.step(scheduled={bench.added().key: 0})


async def test_a6_one_caller_cannot_fill_the_queue(bench: Bench) -> None:
    """Whoever comes first leaves a quarter; the next one has of it what the first had of all."""
    await run_full(bench, 256)
    count, refusal = await fill(bench, "first")
    assert count == 192
    text = (
        "192 requests are waiting (max_waiting 256), 192 of them of this caller, whose share is used up. Try again in"
    )
    assert refusal.message.startswith(text)
    assert (refusal.reason, refusal.max_waiting) == ("QUEUE_FULL", 256)
    assert [(await fill(bench, caller))[0] for caller in ("second", "third", "fourth")] == [48, 12, 3]


async def test_a6_sequences_are_counted_and_not_requests(bench: Bench) -> None:
    await run_full(bench, 256)
    count, refusal = await fill(bench, "first", n=64)
    assert count == 192
    text = (
        "192 sequences of 3 requests are waiting (max_waiting 256), 192 of them of this caller, whose share is used up"
    )
    assert refusal.message.startswith(text)
    count, _ = await fill(bench, "second", n=10)
    assert count == 40
    await bench.start(caller="third")
    assert waiting(bench) <= 256


@pytest.mark.parametrize("n", [1, 2, 7])
async def test_a6_max_waiting_is_never_passed(bench: Bench, n: int) -> None:
    await run_full(bench, 10)
    for caller in "abcdefghijkl":
        await fill(bench, caller, n)
        assert waiting(bench) <= 10


async def test_a6_who_has_none_waiting_gets_the_next_place(bench: Bench) -> None:
    """Those who filled the queue take none of what becomes free before a newcomer has come."""
    await run_full(bench, 4)
    for caller in "abcd":
        await fill(bench, caller)
    assert waiting(bench) == 4
    with pytest.raises(ResourceExhausted, match=r"4 requests are waiting \(max_waiting 4\)\. Try again"):
        await bench.start(caller="new")
    bench.core.step(scheduled={bench.core.added[1].key: 0})
    with pytest.raises(ResourceExhausted, match="of this caller, whose share is used up"):
        await bench.start(caller="a")
    await bench.start(caller="new")


async def test_a6_an_owner_is_one_caller_whatever_its_connections(bench: Bench) -> None:
    await run_full(bench, 8)
    assert (await fill(bench, "one", owner="ann"))[0] == 6
    assert (await fill(bench, "two", owner="ann"))[0] == 0
    assert (await fill(bench, "two", owner="bob"))[0] == 1


async def test_a6_a_share_is_had_again_after_the_end_and_a_core_lost(bench: Bench) -> None:
    await run_full(bench, 8)
    await fill(bench, "a")
    for added in bench.core.added[1:]:
        bench.core.step(ended={added.key: FinishReason.EOS})
    assert (await fill(bench, "a"))[0] == 6
    outputs = bench.engine._models.get(NAME).outputs
    outputs.put_back(outputs.all())
    assert (outputs.line.of("a"), outputs.line.requests_of("a"), outputs.line.requests) == (6, 6, 7)


async def test_a6_what_never_finds_a_place_is_no_matter_of_waiting(bench: Bench) -> None:
    await bench.run(max_batch=2, max_waiting=4)
    with pytest.raises(InvalidArgument, match="= 6 never finds a place: 2 sequences are computed at once") as caught:
        await bench.start(config={"n": 6})
    assert caught.value.violations[0].field == "config.n"
    with pytest.raises(InvalidArgument) as caught:
        await bench.start(config={"n": 1, "best_of": 6})
    assert caught.value.violations[0].field == "config.best_of"
    await bench.start(config={"n": 5})


class TestRoom:
    """When an owner whose results are full should come back."""

    async def refused(self, bench: Bench) -> float:
        with pytest.raises(ResourceExhausted) as caught:
            await bench.start(config={"max_new_tokens": 40})
        assert caught.value.reason == "RESULTS_FULL"
        assert caught.value.retry_after is not None
        return caught.value.retry_after

    async def test_when_a_running_one_should_end(self, bench: Bench) -> None:
        core = await bench.run(max_result_bytes=log_bytes(40))
        await bench.start(config={"max_new_tokens": 40})
        key = bench.added().key
        for _ in range(11):
            core.step({key: 1}, scheduled={key: 0})
            bench.clock.advance(0.5)
        assert await self.refused(bench) == pytest.approx(29 * 0.55)

    async def test_when_the_lease_of_one_that_ended_is_over(self, bench: Bench) -> None:
        core = await bench.run(max_result_bytes=log_bytes(40))
        await bench.start(config={"max_new_tokens": 40})
        core.step({bench.added().key: 1}, ended={bench.added().key: FinishReason.EOS})
        bench.clock.advance(570)
        assert await self.refused(bench) == pytest.approx(30)

    async def test_a_while_where_nobody_knows(self, bench: Bench) -> None:
        """Somebody is there for all that ended."""
        core = await bench.run(max_result_bytes=log_bytes(40))
        accepted = await bench.start(config={"max_new_tokens": 40})
        request: Request = bench.engine._book.find(accepted.handle, "")
        request.arrive()
        core.step({bench.added().key: 1}, ended={bench.added().key: FinishReason.EOS})
        assert await self.refused(bench) >= 0.1
        request.leave()
