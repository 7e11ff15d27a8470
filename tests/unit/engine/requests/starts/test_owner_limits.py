"""Limits of an owner that come with a start, and what each owner uses."""

from __future__ import annotations

import pytest
from headrace_engine.engine.results.budget import SEQUENCE_BYTES, log_bytes
from headrace_engine.errors import InvalidArgument, ResourceExhausted
from headrace_engine.request_types import OwnerLimit, OwnerLimits, ResumedSequence
from headrace_engine.result_types import FinishReason
from support.engine.rig import Rig

OWNER = "team"


def limits(**most: int | tuple[int, int]) -> OwnerLimits:
    """Limits by name: what the owner may have, and perhaps what it has on other engines."""
    found = {name: OwnerLimit(*((value,) if isinstance(value, int) else value)) for name, value in most.items()}
    return OwnerLimits("web", **found)


async def start(rig: Rig, limits: OwnerLimits | None = None, owner: str = OWNER, **config: int) -> str:
    asked = {"max_new_tokens": 4, **config}
    return (await rig.start(owner=owner, limits=limits, config=asked)).handle


async def refused(rig: Rig, limits: OwnerLimits, **config: int) -> ResourceExhausted:
    with pytest.raises(ResourceExhausted) as caught:
        await start(rig, limits, **config)
    assert caught.value.retry_after
    return caught.value


async def test_requests_in_progress_are_limited_until_one_ends(rig: Rig) -> None:
    core = await rig.run()
    first = await start(rig, limits(concurrent_requests=2))
    await start(rig, limits(concurrent_requests=2))
    refusal = await refused(rig, limits(concurrent_requests=2))
    assert refusal.message.startswith(
        'API key "web" has 2 requests in progress; allowed: 2 (concurrent_requests). Try again in'
    )
    assert (refusal.reason, refusal.metadata) == ("QUEUE_FULL", {"limit": "concurrent_requests"})
    await start(rig, owner="other")
    core.step(ended={core.added[0].key: FinishReason.EOS})
    await start(rig, limits(concurrent_requests=2))
    await rig.engine.release_request(first, OWNER)
    assert (await refused(rig, limits(concurrent_requests=2))).reason == "QUEUE_FULL"


@pytest.mark.parametrize("end", ["stop_request", "release_request"])
async def test_a_request_that_is_ended_by_its_client_makes_room(rig: Rig, end: str) -> None:
    await rig.run()
    handle = await start(rig, limits(concurrent_requests=1), n=2)
    await refused(rig, limits(concurrent_requests=1))
    await getattr(rig.engine, end)(handle, OWNER)
    await start(rig, limits(concurrent_requests=1))


async def test_what_is_on_other_engines_counts(rig: Rig) -> None:
    await rig.run()
    await start(rig, limits(concurrent_requests=(3, 2)))
    refusal = await refused(rig, limits(concurrent_requests=(3, 2)))
    assert "has 3 requests in progress; allowed: 3" in refusal.message


async def test_only_requests_that_would_wait_count_as_waiting(rig: Rig) -> None:
    core = await rig.run(max_batch=1)
    await start(rig, limits(waiting_requests=1))
    core.step(scheduled={rig.added().key: 0})
    await start(rig, limits(waiting_requests=1))
    refusal = await refused(rig, limits(waiting_requests=1))
    assert 'API key "web" has 1 requests waiting; allowed: 1 (waiting_requests)' in refusal.message
    core.step(ended={core.added[0].key: FinishReason.EOS}, scheduled={core.added[1].key: 0})
    await start(rig, limits(waiting_requests=1))


async def test_a_search_waits_until_there_is_room_for_its_beams(rig: Rig) -> None:
    """However few of its texts are asked for. What the owner has elsewhere leaves it no other that waits."""
    core = await rig.run(max_batch=4)
    await start(rig)
    core.step(scheduled={rig.added().key: 0})
    refusal = await refused(rig, limits(waiting_requests=(1, 1)), num_beams=4)
    assert "has 1 requests waiting; allowed: 1 (waiting_requests)" in refusal.message
    await start(rig, limits(waiting_requests=(1, 1)), num_beams=3)


async def test_bytes_are_limited_over_all_models(rig: Rig) -> None:
    await rig.run()
    await start(rig)
    taken = rig.engine._usage_of(OWNER).bytes
    assert taken >= log_bytes(4)
    await rig.run("other")
    refusal = await refused(rig, limits(kept_bytes=taken + SEQUENCE_BYTES))
    assert refusal.reason == "RESULTS_FULL"
    assert f'API key "web" has {taken} bytes kept, and this request may need' in refusal.message
    with pytest.raises(InvalidArgument, match=r"API key \"web\" may keep 100 \(kept_bytes\)"):
        await start(rig, limits(kept_bytes=100))
    await start(rig, limits(kept_bytes=3 * taken))


async def test_tokens_are_those_of_prompts_and_those_sampled(rig: Rig) -> None:
    core = await rig.run()
    await start(rig, n=2)
    first, second = (each.key for each in core.added)
    core.step({first: 9, second: 9}, scheduled={first: 0, second: 0})
    core.step({first: 9}, ended={second: FinishReason.EOS})
    usage = rig.engine._usage_of(OWNER)
    assert (usage.requests, usage.waiting, usage.prompt_tokens, usage.sampled_tokens) == (1, 0, 3, 3)
    core.step({first: 9}, ended={first: FinishReason.EOS})
    usage = rig.engine._usage_of(OWNER)
    assert (usage.requests, usage.sampled_tokens) == (0, 4)
    assert rig.engine._usage_of("other").sampled_tokens == 0


async def test_of_a_hand_over_only_new_tokens_are_counted(rig: Rig) -> None:
    core = await rig.run()
    resume = (ResumedSequence(0, (9, 9)),)
    await rig.start(owner=OWNER, request_id="r", handover=1, resume=resume, config={"max_new_tokens": 8})
    core.step({rig.added().key: 9}, scheduled={rig.added().key: 0})
    usage = rig.engine._usage_of(OWNER)
    assert (usage.prompt_tokens, usage.sampled_tokens) == (0, 1)


async def test_with_best_of_every_candidate_is_counted(rig: Rig) -> None:
    core = await rig.run()
    handle = await start(rig, best_of=3)
    keys = [each.key for each in core.added]
    core.step(dict.fromkeys(keys, 9), scheduled=dict.fromkeys(keys, 0), logprobs=[-1.0] * 3)
    core.step(ended=dict.fromkeys(keys, FinishReason.EOS))
    usage = rig.engine._usage_of(OWNER)
    assert (usage.requests, usage.sampled_tokens) == (0, 3)
    await rig.engine.release_request(handle, OWNER)
    assert rig.engine._usage_of(OWNER).bytes == 0


async def test_owners_that_change_are_told_once(rig: Rig) -> None:
    core = await rig.run()
    await start(rig, owner="")
    await start(rig)
    found, version = rig.engine._usage_since(0)
    assert [(each.owner, each.requests) for each in found] == [(OWNER, 1)]
    core.step(ended={rig.added().key: FinishReason.EOS})
    found, version = rig.engine._usage_since(version)
    assert [(each.owner, each.requests) for each in found] == [(OWNER, 0)]
    assert rig.engine._usage_since(version) == ([], version)
