"""Log-probabilities of a prompt: read in pieces, told once, known to the next core."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headrace_engine.engine.results.budget import log_bytes
from headrace_engine.engine.results.prompt_log import PromptLog
from headrace_engine.engine.results.token_details import DetailOptions
from headrace_engine.errors import Internal, InvalidArgument, OutOfRange
from headrace_engine.ipc.step_output import PromptPiece
from headrace_engine.result_types import FinishReason
from headrace_engine.service.convert.results import elements_to_wire, prompt_to_wire
from headrace_engine.token_types import PromptLogprobs, TopLogprobs
from headrace_proto.v1.request_service_pb2 import GetRequestResponse
from support.clocks.clock import settle
from support.engine.rig import NAME, Rig
from support.scripted.core import READY

PROMPT = (5, 6, 7, 8, 9)
ASKED = {"prompt_logprobs": 2, "max_new_tokens": 4}


def piece(key: int, begin: int, end: int, top: int = 2) -> PromptPiece:
    """What a core tells of tokens begin to end."""
    ids = [token * 10 + place for token in range(begin, end) for place in range(top)]
    return PromptPiece(key, begin, [-token / 2 for token in range(begin, end)], ids, [-0.25] * len(ids))


def answered(begin: int, end: int) -> PromptLogprobs:
    """The same as readers get it, of PROMPT."""
    whole = piece(0, begin, end)
    tops = TopLogprobs(2, whole.top_ids, whole.top_logprobs)
    return PromptLogprobs(begin, list(PROMPT[begin:end]), whole.logprobs, tops)


def test_what_is_not_known_yet_is_not_there() -> None:
    log = PromptLog(PROMPT, 2)
    assert (log.position, log.read(0)) == (1, None)
    log.add(piece(1, 1, 3))
    assert (log.position, log.read(0), log.read(2), log.read(3)) == (3, answered(1, 3), answered(2, 3), None)


def test_what_is_told_again_is_known() -> None:
    """Another sequence of the request began the prompt anew."""
    log = PromptLog(PROMPT, 2)
    for begin, end in ((1, 3), (1, 2), (2, 4), (1, 5), (3, 5)):
        log.add(piece(1, begin, end))
    assert log.read(0) == answered(1, 5)
    with pytest.raises(ValueError, match="known up to token 5, and 6 came"):
        log.add(piece(1, 6, 7))


def test_where_no_alternatives_are_asked_for_there_are_none() -> None:
    log = PromptLog(PROMPT, 0)
    log.add(piece(1, 1, 3, 0))
    assert log.read(1) == PromptLogprobs(1, [6, 7], [-0.5, -1.0], None)


@pytest.mark.parametrize("top", [0, 1, 20])
def test_pieces_are_at_most_a_mebibyte_and_follow_each_other(top: int) -> None:
    ids = [2**20] * 120_000
    log = PromptLog(ids, top)
    log.add(PromptPiece(1, 1, [-1.0] * 119_999, [2**20] * (119_999 * top), [-1.0] * (119_999 * top)))
    pieces = list(log.pieces())
    assert sum(len(each.token_ids) for each in pieces) == 119_999
    assert [each.position for each in pieces[1:]] == [each.position + len(each.token_ids) for each in pieces[:-1]]
    messages = [prompt_to_wire(each) for each in pieces]
    sizes = [message.ByteSize() for message in messages if message is not None]
    assert max(sizes) <= 1 << 20
    assert len(pieces) == 1 or min(sizes[:-1]) > 700_000


def test_a_place_beyond_the_prompt_is_refused() -> None:
    log = PromptLog(PROMPT, 0)
    for position in (0, 5):
        log.check_position(position)
    with pytest.raises(OutOfRange, match="6 is outside the prompt of 5 tokens; allowed: 0 to 5"):
        log.check_position(6)


async def test_all_sequences_share_what_one_of_them_tells(rig: Rig) -> None:
    core = await rig.run()
    accepted = await rig.start(PROMPT, config={**ASKED, "n": 3})
    assert [(each.prompt_logprobs, each.prompt_reported) for each in core.added] == [(2, 0)] * 3
    core.step({}, prompts=[piece(core.added[0].key, 1, 4)])
    core.step({core.added[1].key: 9}, prompts=[piece(core.added[1].key, 1, 5)])
    view, _ = await rig.engine.get_request(handle=accepted.handle, prompt_logprobs_from=2)
    assert view.prompt_logprobs == answered(2, 5)


async def test_who_did_not_ask_is_told_so(rig: Rig) -> None:
    await rig.run()
    accepted = await rig.start(PROMPT)
    assert (rig.added().prompt_logprobs, rig.added().tensors) == (None, False)
    with pytest.raises(InvalidArgument) as caught:
        await rig.engine.get_request(handle=accepted.handle, prompt_logprobs_from=0, wait=600)
    assert caught.value.violations[0].field == "prompt_logprobs_from"


@pytest.mark.parametrize("known", [0, 2, 4])
async def test_the_next_core_knows_what_was_told(known: int, rig: Rig) -> None:
    core = await rig.run()
    accepted = await rig.start(PROMPT, config=ASKED)
    if known:
        core.step({}, scheduled={core.added[0].key: 0}, prompts=[piece(core.added[0].key, 1, 1 + known)])
    core.die()
    await settle()
    assert rig.added().prompt_reported == 1 + known
    rig.core.step({rig.added().key: 3}, prompts=[piece(rig.added().key, 1 + known, 5)] if known < 4 else [])
    view, _ = await rig.engine.get_request(handle=accepted.handle, prompt_logprobs_from=0)
    assert view.prompt_logprobs == answered(1, 5)


async def test_generate_tells_the_prompt_first(rig: Rig) -> None:
    core = await rig.run()
    stream = rig.engine.generate(rig.request(PROMPT, config={**ASKED, "max_new_tokens": 1}))
    await anext(stream)
    core.step({core.added[0].key: 9}, prompts=[piece(core.added[0].key, 1, 5)],
              ended={core.added[0].key: FinishReason.MAX_LENGTH})  # fmt: skip
    results = [result async for _, _, result in stream]
    assert [result and result.prompt for result in results] == [answered(1, 5), None]


async def test_one_that_fails_within_its_prompt_has_told_the_beginning(rig: Rig) -> None:
    core = await rig.run()
    stream = rig.engine.generate(rig.request(PROMPT, config=ASKED))
    await anext(stream)
    core.step({}, prompts=[piece(core.added[0].key, 1, 3)], ended={core.added[0].key: FinishReason.ERROR})
    results = [result async for _, _, result in stream]
    assert [result and result.prompt for result in results] == [answered(1, 3), None]
    assert results[1] is not None
    assert results[1].end is not None
    assert isinstance(results[1].end.error, Internal)


async def test_generate_reports_the_whole_prompt_of_an_early_end(rig: Rig) -> None:
    core = await rig.run()
    stream = rig.engine.generate(rig.request(PROMPT, config={**ASKED, "max_new_tokens": 1, "n": 2}))
    await anext(stream)
    first, second = (each.key for each in core.added)
    core.step({}, prompts=[piece(first, 1, 3)], ended={second: FinishReason.ERROR})
    found = [await anext(stream), await anext(stream)]
    core.step({first: 9}, prompts=[piece(first, 3, 5)], ended={first: FinishReason.MAX_LENGTH})
    found += [each async for each in stream]
    results = [(index, result) for _, index, result in found if result is not None]
    assert [(index, result.prompt) for index, result in results] == [
        (1, answered(1, 3)),
        (1, None),
        (0, answered(3, 5)),
        (0, None),
    ]
    assert [result.end is not None for _, result in results] == [False, True, False, True]


async def test_tokens_and_prompt_come_in_at_most_a_mebibyte(rig: Rig) -> None:
    """Tokens first; of the prompt what there is room for, at least a token, so that readers get on."""
    rig.launcher.ready_at_once = replace(READY, max_length=16_384)
    core = await rig.run()
    asked = {"prompt_logprobs": 20, "logprobs": True, "top_logprobs": 20, "enable_tensors_from_model_inference": True}
    prompt = tuple(place % 384 for place in range(8_000))
    handle = (await rig.start(prompt, config={**asked, "max_new_tokens": 2_000})).handle
    key, top = core.added[0].key, 20 * 7_999
    core.step({}, prompts=[PromptPiece(key, 1, [-1.0] * 7_999, [383] * top, [-1.0] * top)])
    log = rig.engine._registry.find(handle, "").sequence(0).log
    for _ in range(2_000):
        log.append(383, "x" * 700, -1.0, ([383] * 20, [-1.0] * 20), bytes(512))
    position, place, answers = 0, 1, 0
    while position < 2_000 or place < 8_000:
        view, elements = await rig.engine.get_request(handle=handle, from_position=position, prompt_logprobs_from=place)
        message = GetRequestResponse(
            elements=None if elements is None else elements_to_wire(elements),
            prompt_logprobs=prompt_to_wire(view.prompt_logprobs),
        )
        assert message.ByteSize() <= 1 << 20
        assert (elements is None) == (position == 2_000)
        assert (view.prompt_logprobs is None) == (place == 8_000)
        position += 0 if elements is None else len(elements.token_ids)
        place += 0 if view.prompt_logprobs is None else len(view.prompt_logprobs.token_ids)
        answers += 1
    assert answers > 2


async def test_a_prompt_takes_room_until_it_is_released(rig: Rig) -> None:
    await rig.run()
    accepted = await rig.start(PROMPT, config={**ASKED, "enable_tensors_from_model_inference": True})
    budget, tenant = rig.engine._registry.budget, ("", NAME)
    prompt = 5 * (8 + 2 * 8)
    assert budget.taken(tenant) == log_bytes(4, DetailOptions(hidden_size=64)) + prompt
    await rig.engine.stop_request(accepted.handle, "")
    assert budget.taken(tenant) == log_bytes(0) + prompt
    await rig.engine.release_request(accepted.handle, "")
    assert budget.taken(tenant) == 0


async def test_vectors_are_told_of_each_token_that_asks(rig: Rig) -> None:
    core = await rig.run()
    asking = await rig.start(PROMPT, config={"enable_tensors_from_model_inference": True, "max_new_tokens": 4})
    quiet = await rig.start(PROMPT, config={"max_new_tokens": 4})
    first, second = (each.key for each in core.added)
    for token in (3, 4):
        core.step({first: token, second: token}, tensors=[bytes([token]) * 256 + bytes([token + 1]) * 256, b""])
    elements, plain = await rig.unread(asking.handle), await rig.unread(quiet.handle)
    assert elements is not None
    assert elements.details is not None
    tensors = elements.details.tensors
    assert tensors is not None
    assert (tensors.size, tensors.inputs_embedding) == (64, b"\3" * 256 + b"\4" * 256)
    assert tensors.hidden_states == b"\4" * 256 + b"\5" * 256
    assert plain is not None
    assert plain.details is None
