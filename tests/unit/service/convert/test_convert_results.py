"""Results, models and statistics cross the wire whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headrace_engine.errors import Internal
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.request_types import AcceptedRequest, RequestView
from headrace_engine.result_types import (
    Elements,
    EndRecord,
    FinishReason,
    GenerateStatus,
    ReadResult,
    RequestStat,
    SequenceView,
)
from headrace_engine.service.convert import results
from headrace_engine.token_types import TokenDetails, TokenTensors, TopLogprobs
from headrace_proto.v1 import model_pb2, request_pb2, runtime_pb2, stat_pb2
from unit.service.filled import filled, unset_fields

STAT = RequestStat(arrival_time=10.5, generated_token_length=0)


def elements_to_domain(message):
    """Consecutive tokens from a message."""
    elements = results._ELEMENTS.to_domain(message)
    has_logprobs, logprobs = message.HasField("logprobs"), message.logprobs
    if not has_logprobs and not message.tensors:
        return elements
    tops = TopLogprobs(logprobs.top_count, list(logprobs.top_ids), list(logprobs.top_logprobs))
    details = TokenDetails(
        token_logprobs=list(logprobs.token_logprobs) if has_logprobs else None,
        top_logprobs=tops if logprobs.top_count else None,
        tensors=vectors(message) if message.tensors else None,
    )
    return replace(elements, details=details)


def vectors(message):
    tensors = {named.name: named.tensor for named in message.tensors}
    width = tensors["hidden_states"].shape[1]
    return TokenTensors(size=width, **{name: tensor.data for name, tensor in tensors.items()})


@pytest.mark.parametrize(
    ("to_domain", "to_wire", "kind"),
    [
        (results.MODEL.to_domain, results.MODEL.to_wire, model_pb2.ModelInfo),
        (results.DESCRIPTION.to_domain, results.DESCRIPTION.to_wire, model_pb2.ModelDescription),
        (results.EFFECTIVE_CONFIG.to_domain, results.EFFECTIVE_CONFIG.to_wire, runtime_pb2.EffectiveConfig),
        (results.REQUEST_STAT.to_domain, results.REQUEST_STAT.to_wire, stat_pb2.RequestStatInfo),
        (results.ENGINE_STAT.to_domain, results.ENGINE_STAT.to_wire, stat_pb2.EngineStat),
        (results.ACCEPTED.to_domain, results.ACCEPTED.to_wire, request_pb2.AcceptedRequest),
        (elements_to_domain, results.elements_to_wire, request_pb2.GeneratedElements),
    ],
)
def test_every_field_survives_wire_to_domain_to_wire(to_domain, to_wire, kind):
    for message in filled(kind):
        assert not list(unset_fields(message))
        assert to_wire(to_domain(message)) == message


def test_statistics_that_are_not_known_yet_are_unset():
    message = results.REQUEST_STAT.to_wire(STAT)
    assert [field.name for field, _ in message.ListFields()] == ["arrival_time", "generated_token_length"]
    assert (message.arrival_time.seconds, message.arrival_time.nanos) == (10, 500_000_000)


@pytest.mark.parametrize("reason", FinishReason)
def test_the_end_record_tells_its_status_with_its_reason(reason):
    message = results.END_RECORD.to_wire(EndRecord(reason, 3, "tail", 7, STAT))
    assert message.finish_reason == request_pb2.FinishReason.Value(f"FINISH_REASON_{reason}")
    assert message.status == request_pb2.GenerateStatus.Value(f"GENERATE_STATUS_{reason.status}")
    assert (message.position, message.text, message.checksum) == (3, "tail", 7)


def test_the_end_of_a_faulty_request_carries_the_fault():
    error = Internal("logits are not finite", metadata={"request_id": "r1"})
    message = results.END_RECORD.to_wire(EndRecord(FinishReason.ERROR, 0, "", 0, STAT, error=error))
    assert message.error.message == "logits are not finite"


def test_an_element_without_logprobs_differs_from_an_empty_list():
    def element(logprobs):
        return results.elements_to_wire(Elements(0, [5], "a", 0, 9, TokenDetails(logprobs)))

    assert not element(None).HasField("logprobs")
    assert element([]).HasField("logprobs")
    assert list(element([-0.5]).logprobs.token_logprobs) == [-0.5]


def test_most_likely_ids_are_told_in_columns_and_read_back():
    details = TokenDetails([-0.5, -1.0], TopLogprobs(2, [1, 2, 3, 4], [-0.5] * 4))
    elements = Elements(0, [5, 6], "a", 0, 9, details)
    message = results.elements_to_wire(elements)
    assert (message.logprobs.top_count, list(message.logprobs.top_ids)) == (2, [1, 2, 3, 4])
    assert elements_to_domain(message) == elements


def test_the_first_message_of_generate_says_what_was_accepted():
    accepted = AcceptedRequest("e1/i/0", "r1", "smol", GenerationConfig(seed=7), 7, 3, "ab")
    message = results.generate_response(accepted, 0, None)
    assert message.request.handle == "e1/i/0"
    assert message.request.effective_config.seed == 7
    assert message.status == request_pb2.GENERATE_STATUS_INIT
    assert not message.HasField("elements")


def test_later_messages_of_generate_bring_what_was_found():
    end = EndRecord(FinishReason.EOS, 1, "", 9, STAT)
    found = ReadResult(GenerateStatus.FINISHED, Elements(0, [5], "a", 0, 9), end)
    message = results.generate_response(None, 2, found)
    assert (message.index, message.status) == (2, request_pb2.GENERATE_STATUS_FINISHED)
    assert list(message.elements.token_ids) == [5]
    assert message.end.finish_reason == request_pb2.FINISH_REASON_EOS
    assert not message.HasField("request")


def test_lists_of_requests_leave_their_configs_out():
    accepted = AcceptedRequest("e1/i/0", "r1", "smol", GenerationConfig(seed=7), 7, 3, "ab")
    sequence = SequenceView(0, GenerateStatus.INIT, 0, 0, STAT)
    (state,) = results.request_states([RequestView(accepted, (sequence,), attached=1)])
    assert not state.request.HasField("effective_config")
    assert (state.request.seed, state.attached, len(state.sequences)) == (7, 1, 1)
