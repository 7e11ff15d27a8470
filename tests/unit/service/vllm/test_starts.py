"""vLLM's requests as this engine's."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_engine.errors import InvalidArgument
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from headrace_engine.service.vllm.starts import check_request, start_of
from smg_grpc_proto.generated import vllm_engine_pb2 as wire

IDS = (5, 6, 7)
UNSET = GenerationConfig(skip_special_tokens=False)


def config(**fields: Any) -> GenerationConfig:
    return start_of("smol", IDS, wire.SamplingParams(**fields)).config


def test_numbers_without_presence_are_unset_at_zero() -> None:
    start = start_of("smol", IDS, wire.SamplingParams())
    assert (start.model_name, tuple(start.prompt), start.config) == ("smol", IDS, UNSET)


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"top_p": 0.5, "min_p": 0.25}, {"top_p": 0.5, "min_p": 0.25}),
        ({"top_k": 7}, {"top_k": 7}),
        ({"top_k": 2**32 - 1}, {"top_k": None}),
        ({"frequency_penalty": -1.0, "presence_penalty": 1.5}, {"frequency_penalty": -1.0, "presence_penalty": 1.5}),
        ({"repetition_penalty": 1.25}, {"repetition_penalty": 1.25}),
        ({"max_tokens": 9, "min_tokens": 2}, {"max_new_tokens": 9, "min_new_tokens": 2}),
        ({"stop": ["a", "b"], "stop_token_ids": [3]}, {"stop_words": ("a", "b"), "stop_token_ids": (3,)}),
        ({"include_stop_str_in_output": True, "ignore_eos": True}, {"include_stop": True, "ignore_eos": True}),
        ({"n": 3, "seed": -1}, {"n": 3, "seed": 2**64 - 1}),
        ({"logit_bias": {4: -2.0}}, {"logit_bias": {4: -2.0}}),
        ({"logprobs": 0}, {"logprobs": True}),
        ({"logprobs": 5, "prompt_logprobs": 0}, {"logprobs": True, "top_logprobs": 5, "prompt_logprobs": 0}),
        ({"skip_special_tokens": True}, {"skip_special_tokens": True}),
    ],
)
def test_sampling_parameters_have_fields(sent: dict[str, Any], meant: dict[str, Any]) -> None:
    found = config(**sent)
    assert {name: getattr(found, name) for name in meant} == meant
    others = {name for name in GenerationConfig.__dataclass_fields__ if name not in meant}
    assert all(getattr(found, name) == getattr(UNSET, name) for name in others - {"skip_special_tokens"})


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({"json_object": True}, ResponseFormat(ResponseFormatKind.JSON_OBJECT)),
        ({"json_object": False}, None),
        ({"json_schema": "{}"}, ResponseFormat(ResponseFormatKind.JSON_SCHEMA, "{}")),
        ({"structural_tag": "{}"}, ResponseFormat(ResponseFormatKind.STRUCTURAL_TAG, "{}")),
        ({"regex": "a+"}, ResponseFormat(ResponseFormatKind.REGEX, "a+")),
        ({"grammar": 'start: "a"'}, ResponseFormat(ResponseFormatKind.GRAMMAR, 'start: "a"')),
        ({"grammar": 'root ::= "a"'}, ResponseFormat(ResponseFormatKind.GRAMMAR, 'root ::= "a"', ebnf=True)),
        (
            {"choice": wire.ChoiceConstraint(choices=["a", "b"])},
            ResponseFormat(ResponseFormatKind.CHOICE, choices=("a", "b")),
        ),
    ],
)
def test_constraints_are_response_formats(sent: dict[str, Any], meant: ResponseFormat | None) -> None:
    assert config(**sent).response_format == meant


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"logprobs": -1}, "sampling_params.logprobs"),
        ({"prompt_logprobs": -1}, "sampling_params.prompt_logprobs"),
    ],
)
def test_what_has_no_field_is_refused(sent: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        config(**sent)
    assert [violation.field for violation in refused.value.violations] == [field]


@pytest.mark.parametrize(
    ("request_fields", "field"),
    [
        ({"kv_transfer_params_json": "{}"}, "kv_transfer_params_json"),
        ({"kv_transfer_params": wire.KvTransferParams()}, "kv_transfer_params"),
        ({"mm_inputs": wire.MultimodalInputs()}, "mm_inputs"),
        ({"extra_mm_inputs": [wire.MultimodalInputs()]}, "extra_mm_inputs"),
        ({"media_refs": wire.MediaRefs()}, "media_refs"),
        ({"data_parallel_rank": 1}, "data_parallel_rank"),
        (
            {"sampling_params": wire.SamplingParams(truncate_prompt_tokens=5)},
            "sampling_params.truncate_prompt_tokens",
        ),
    ],
)
def test_requests_for_what_is_not_there_are_refused(request_fields: dict[str, Any], field: str) -> None:
    check_request(wire.GenerateRequest(data_parallel_rank=0))
    with pytest.raises(InvalidArgument) as refused:
        check_request(wire.GenerateRequest(**request_fields))
    assert [violation.field for violation in refused.value.violations] == [field]
