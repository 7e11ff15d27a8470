"""Messages from their JSON form: as `json_format` reads them, with long lists put in whole."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf import json_format
from headrace_gateway.http.rpc.json_form import MAX_VALUES, message_of
from headrace_proto.v1 import generation_pb2, request_pb2, request_service_pb2

IDS = [random.Random(7).randrange(1 << 32) for _ in range(1000)]

FORMS: list[tuple[type, Any]] = [
    (request_service_pb2.StartRequestRequest, {"modelName": "m", "tokenIds": {"ids": IDS}, "requestId": "r"}),
    (request_service_pb2.StartRequestRequest, {"model_name": "m", "token_ids": {"ids": []}}),
    (generation_pb2.GenerationConfig, {"stop_words": ["a", "b"], "stopWordsIds": [{"ids": [1, 2]}, {"ids": [3]}]}),
    (generation_pb2.GenerationConfig, {"logitBias": {"1": 2.5, "2": -1}, "temperature": 0.5, "allowedTokenIds": ["7"]}),
    (generation_pb2.GenerationConfig, {"logits_processors": [{"name": "n", "arguments": [1, 2.5, "NaN", "Infinity"]}]}),
    (request_pb2.Logprobs, {"tokenLogprobs": [0.1, 1, -2.5e10], "topIds": [1, 2]}),
    (request_service_pb2.StartRequestRequest, {"config": None, "resume": {}, "text": "a"}),
]


@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_a_form_is_what_protobuf_says_that_it_is(kind: type, form: Any) -> None:
    assert message_of(kind, form) == json_format.ParseDict(form, kind())


BAD: list[tuple[type, Any]] = [
    (request_service_pb2.StartRequestRequest, {"tokenIds": {"ids": [1, 1 << 32]}}),
    (request_service_pb2.StartRequestRequest, {"tokenIds": {"ids": [1, -1]}}),
    (request_service_pb2.StartRequestRequest, {"tokenIds": {"ids": [1, True]}}),
    (request_service_pb2.StartRequestRequest, {"tokenIds": {"ids": [1, None]}}),
    (request_service_pb2.StartRequestRequest, {"tokenIds": {"ids": [1, "x"]}}),
    (request_service_pb2.StartRequestRequest, {"tokenIds": {"ids": [1], "nothing": 1}}),
    (request_service_pb2.StartRequestRequest, {"tokenIds": {"ids": [1]}, "token_ids": {"ids": [2]}}),
    (request_service_pb2.StartRequestRequest, {"tokenIds": {"ids": [1]}, "text": "a"}),
    (request_service_pb2.StartRequestRequest, {"tokenIds": [1, 2]}),
    (request_pb2.Logprobs, {"tokenLogprobs": [1, 1e300]}),
    (generation_pb2.GenerationConfig, {"stop_words": ["a", 1]}),
]


@pytest.mark.parametrize(("kind", "form"), BAD)
def test_a_form_that_protobuf_refuses_is_refused_in_its_words(kind: type, form: Any) -> None:
    with pytest.raises(json_format.ParseError) as theirs:
        json_format.ParseDict(form, kind())
    with pytest.raises(json_format.ParseError) as ours:
        message_of(kind, form)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (generation_pb2.GenerationConfig, {"logitBias": {str(number): 1 for number in range(MAX_VALUES)}}),
        (generation_pb2.GenerationConfig, {"stopWordsIds": [{"ids": [1]}] * MAX_VALUES}),
        (request_service_pb2.StartRequestRequest, {"tokenIds": {"ids": ["1"] * (MAX_VALUES + 1)}}),
        (request_service_pb2.StartRequestRequest, {"nothing": [[1, 2]] * MAX_VALUES}),
    ],
)
def test_what_would_take_long_is_refused_before_it_is_converted(
    kind: type, form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("it is converted")

    monkeypatch.setattr(json_format, "ParseDict", never)
    with pytest.raises(json_format.ParseError, match=str(MAX_VALUES)):
        message_of(kind, form)


def test_a_long_list_is_no_reason_to_refuse() -> None:
    ids = list(range(10 * MAX_VALUES))
    found = message_of(request_service_pb2.StartRequestRequest, {"tokenIds": {"ids": ids}})
    assert list(found.token_ids.ids) == ids  # type: ignore[attr-defined]
