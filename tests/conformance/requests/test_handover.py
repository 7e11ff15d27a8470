"""Section 6, hand-over: what an engine does with a request that another one began."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from headrace import InvalidRequestError
from headrace_proto.v1 import request_pb2
from support.contract.places import MODEL
from support.servers.wire import Wire

SAMPLED = {"seed": 7, "temperature": 1.0, "max_new_tokens": 40, "ignore_eos": True, "skip_special_tokens": False}
PROMPT = [1, 2, 3]
RULES = {
    "repetition_penalty": 1.5, "presence_penalty": 0.3, "frequency_penalty": 0.3, "no_repeat_ngram_size": 2,
    "bad_words_ids": [{"ids": [9]}, {"ids": [8, 7]}], "min_new_tokens": 30, "eos_token_id": [5, 6], "ignore_eos": False,
}  # fmt: skip


def _resume(ids: list[int], **fields: Any) -> dict[str, Any]:
    return {"sequences": [{"index": 0, "delivered_ids": ids, **fields}]}


def _elements(answers: list[Any]) -> tuple[list[int], str]:
    ids = [token_id for answer in answers for token_id in answer.elements.token_ids]
    return ids, "".join(answer.elements.text for answer in answers) + answers[-1].end.text


@pytest.mark.parametrize(
    "rules",
    [{}, RULES, {**RULES, "do_sample": False}, {"logits_processors": [{"name": "no-repeat"}]}],
    ids=["free", "ruled", "greedy", "processed"],
)
def test_a_request_goes_on_with_the_same_tokens_and_text(wire: Wire, rules: dict[str, Any]) -> None:
    """Ids that were delivered count as generated for every rule."""
    config = {**SAMPLED, **rules}
    key = str(uuid.uuid4())
    first = wire.start(MODEL, PROMPT, config=config, request_id=key)
    whole, _ = _elements(wire.read(first.handle))
    assert len(whole) == 40
    for handover, cut in enumerate((1, 17, 39, 40), 1):
        resume = _resume(whole[:cut])
        again = wire.start(MODEL, PROMPT, config=config, request_id=key, handover=handover, resume=resume)
        assert (again.handover, again.joined) == (handover, False)
        assert again.prompt_hash == first.prompt_hash
        answers = wire.read(again.handle, cut)
        assert _elements(answers) == _elements(wire.read(first.handle, cut))
        assert _elements(answers)[0] == whole[cut:]
        end = answers[-1].end
        assert (end.position, end.finish_reason) == (40, request_pb2.FINISH_REASON_MAX_LENGTH)
        assert end.checksum == wire.state(first.handle).sequences[0].checksum
        assert end.stat.handovers == handover
    assert wire.call("GetRequest", request_id=key).request.request.handover == 4


def test_its_log_begins_where_its_readers_are(wire: Wire) -> None:
    key = str(uuid.uuid4())
    resume = _resume([5, 6, 7], stat={"preemptions": 3, "arrival_time": {"seconds": 1_700_000_000}})
    handle = wire.start(MODEL, PROMPT, config=SAMPLED, request_id=key, handover=1, resume=resume).handle
    sequence = wire.state(handle).sequences[0]
    assert sequence.first_position == 3
    assert sequence.generated_length >= 3
    assert sequence.stat.arrival_time.seconds == 1_700_000_000
    assert sequence.stat.preemptions == 3
    for read in (wire.read, lambda handle, place: wire.call("GetRequest", handle=handle, from_position=place)):
        with pytest.raises(InvalidRequestError) as refusal:
            read(handle, 2)
        assert refusal.value.reason == "POSITION_OUT_OF_RANGE"
        assert refusal.value.details["metadata"]["first_position"] == "3"


def test_a_sequence_whose_end_was_delivered_is_not_run_again(wire: Wire) -> None:
    resume = _resume([5, 6, 7], ended=True)
    handle = wire.start(MODEL, PROMPT, request_id=str(uuid.uuid4()), handover=1, resume=resume).handle
    (answer,) = wire.read(handle, 3)
    assert not answer.HasField("elements")
    assert (answer.end.position, answer.end.finish_reason) == (3, request_pb2.FINISH_REASON_STOPPED)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"handover": 1}, "resume"),
        ({"resume": _resume([5])}, "handover"),
        ({"handover": 1, "resume": {}}, "resume.sequences"),
        ({"handover": 1, "resume": _resume([999])}, "resume.sequences[0].delivered_ids"),
        ({"handover": 1, "resume": _resume([5] * 41)}, "resume.sequences[0].delivered_ids"),
        (
            {"handover": 1, "resume": _resume([5], stat={"handovers": 2**32 - 1})},
            "resume.sequences[0].stat.handovers",
        ),
        (
            {"handover": 1, "resume": _resume([5], stat={"arrival_time": {"seconds": 2**63 - 1}})},
            "resume.sequences[0].stat.arrival_time",
        ),
    ],
)
def test_half_a_hand_over_is_refused_by_name(wire: Wire, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        wire.start(MODEL, PROMPT, config=SAMPLED, request_id=str(uuid.uuid4()), **fields)
    assert refusal.value.reason == "INVALID_FIELD"
    assert refusal.value.details["field_violations"][0]["field"] == field
