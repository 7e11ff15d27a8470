"""A request with several sequences: each has a log, a place in the core and an end of its own, and one prompt."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from headrace_engine.engine.results.budget import log_bytes
from headrace_engine.errors import InvalidArgument, NotFound, ResourceExhausted
from headrace_engine.request_types import ResumedSequence
from headrace_engine.result_types import FinishReason
from support.engine.rig import Rig

THREE = {"n": 3, "max_new_tokens": 4}


async def test_the_core_is_given_all_of_them_as_one_group(rig: Rig) -> None:
    core = await rig.run()
    await rig.start(config=THREE)
    await rig.start(config={"max_new_tokens": 4})
    *several, alone = core.added
    assert [command.index for command in several] == [0, 1, 2]
    assert {command.group for command in several} == {several[0].key}
    assert len({command.key for command in core.added}) == 4
    assert (alone.index, alone.group) == (0, 0)


async def test_each_has_its_own_tokens_and_its_own_end(rig: Rig) -> None:
    core = await rig.run()
    handle = (await rig.start(config=THREE)).handle
    first, second, third = (command.key for command in core.added)
    core.step({first: 10, second: 20, third: 30})
    core.step({first: 11, third: 31}, ended={first: FinishReason.EOS, third: FinishReason.MAX_LENGTH})
    view, _ = await rig.engine.get_request(handle=handle)
    assert [sequence.end is None for sequence in view.sequences] == [False, True, False]
    assert [sequence.generated_length for sequence in view.sequences] == [2, 1, 2]
    core.step({second: 21}, ended={second: FinishReason.EOS})
    view, _ = await rig.engine.get_request(handle=handle)
    reasons = [sequence.end.finish_reason for sequence in view.sequences if sequence.end]
    assert reasons == [FinishReason.EOS, FinishReason.EOS, FinishReason.MAX_LENGTH]
    with pytest.raises(NotFound, match="3 sequence"):
        await rig.engine.get_request(handle=handle, index=3, from_position=0)


async def test_stopping_ends_those_that_run(rig: Rig) -> None:
    core = await rig.run()
    handle = (await rig.start(config=THREE)).handle
    keys = [command.key for command in core.added]
    core.step({keys[0]: 10}, ended={keys[0]: FinishReason.EOS})
    sequences = await rig.engine.stop_request(handle, "")
    assert [one.end.finish_reason for one in sequences if one.end] == [
        FinishReason.EOS,
        FinishReason.STOPPED,
        FinishReason.STOPPED,
    ]


async def test_a_hand_over_goes_on_with_each(rig: Rig) -> None:
    core = await rig.run()
    resume = (ResumedSequence(2, (5, 6)), ResumedSequence(0, (7,), ended=True))
    handle = (await rig.start(request_id="r", handover=1, resume=resume, config=THREE)).handle
    assert [(command.index, command.generated) for command in core.added] == [(1, ()), (2, (5, 6))]
    view, _ = await rig.engine.get_request(handle=handle)
    assert [sequence.first_position for sequence in view.sequences] == [1, 0, 2]
    assert [sequence.end is None for sequence in view.sequences] == [False, True, True]


async def test_the_one_that_is_left_of_a_hand_over_is_alone(rig: Rig) -> None:
    core = await rig.run()
    resume = tuple(ResumedSequence(index, (7,), ended=index < 2) for index in range(3))
    await rig.start(request_id="r", handover=1, resume=resume, config=THREE)
    (left,) = core.added
    assert (left.index, left.group) == (2, 0)


async def test_room_is_taken_for_all_or_for_none(rig: Rig) -> None:
    await rig.run(max_result_bytes=4 * log_bytes(4))
    await rig.start(config=THREE)
    with pytest.raises(ResourceExhausted, match="3 sequences of 4 tokens"):
        await rig.start(config=THREE)
    await rig.start(config={"max_new_tokens": 4})


async def test_more_than_all_room_is_refused_for_good(rig: Rig) -> None:
    await rig.run(max_result_bytes=2 * log_bytes(4))
    with pytest.raises(InvalidArgument, match="3 sequences of 4 tokens"):
        await rig.start(config=THREE)


async def test_generate_tells_all_of_them(rig: Rig) -> None:
    core = await rig.run()
    items = rig.engine.generate(rig.request(config=THREE))
    accepted, _, _ = await anext(items)
    assert accepted is not None
    keys = [command.key for command in core.added]
    core.step(dict(zip(keys, (10, 20, 30), strict=True)), ended=dict.fromkeys(keys, FinishReason.EOS))
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    async for _, index, result in items:
        assert result is not None
        found[index] += result.elements.token_ids if result.elements else []
    assert found == {0: [10], 1: [20], 2: [30]}
    with pytest.raises(NotFound):
        await rig.engine.get_request(handle=accepted.handle)


async def test_a_reader_may_leave_while_another_one_ends(rig: Rig) -> None:
    untaken: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: untaken.append(context))
    core = await rig.run()
    items = rig.engine.generate(rig.request(config=THREE))
    await anext(items)
    first, _, third = (command.key for command in core.added)
    core.step({third: 30}, ended={third: FinishReason.EOS})
    assert (await anext(items))[1] == 2
    core.step({first: 10})
    assert (await anext(items))[1] == 0
    await items.aclose()
    gc.collect()
    assert untaken == []
