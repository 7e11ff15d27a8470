"""Configs under the names of other systems become keywords that the client and the wire take."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import pytest
from headrace import InvalidRequestError
from headrace._values import calls
from headrace._values.builders import Flag, Setter
from headrace._values.fill import fill
from headrace._values.generation_setters import GenerationSetters
from headrace.allspark import ASGenerationConfigBuilder
from headrace.fields import GenerationFields
from headrace.lmdeploy import GenerationConfig
from headrace_proto.v1 import generation_pb2

DOCUMENTED_BY_DASHINFER = {
    "do_sample": True, "temperature": 0.7, "top_k": 50, "top_p": 0.8, "max_length": 512, "min_length": 3,
    "early_stopping": True, "stop_words_ids": [[1, 2], [3]], "eos_token_id": 2, "no_repeat_ngram_size": 3,
    "repetition_penalty": 1.1, "length_penalty": 1.2, "presence_penalty": 0.5, "seed": 7,
    "suppress_repetition_in_generation": True, "logprobs": True, "top_logprobs": 3, "lora_name": "a",
    "mm_info": [{"data": b"x", "mime_type": "image/png"}],
    "response_format": {"type": "json_object"},
}  # fmt: skip


def sent(fields: Mapping[str, Any]) -> generation_pb2.GenerationConfig:
    """The config of a start with these keywords."""
    request = calls.start_request("smol", "Hi", text=None, ids=None, messages=None, request_id=None, fields=fields)
    return request.config


def wire(**fields: Any) -> generation_pb2.GenerationConfig:
    message = generation_pb2.GenerationConfig()
    fill(message, fields)
    return message


class TestDashInfer:
    def test_the_documented_chain(self) -> None:
        config = ASGenerationConfigBuilder().do_sample().max_length(512).temperature(0.7).top_k(50).build()
        assert config == {"do_sample": True, "max_length": 512, "temperature": 0.7, "top_k": 50}
        assert sent(config) == wire(do_sample=True, max_length=512, temperature=0.7, top_k=50)

    @pytest.mark.parametrize("name", DOCUMENTED_BY_DASHINFER)
    def test_every_documented_field_has_a_setter_like_update(self, name: str) -> None:
        value = DOCUMENTED_BY_DASHINFER[name]
        builder = ASGenerationConfigBuilder()
        assert getattr(builder, name)(value) is builder
        assert builder.build() == ASGenerationConfigBuilder().update({name: value}).build()
        assert list(builder.build()) == [name]
        sent(builder.build())

    def test_each_of_our_fields_has_a_documented_setter(self) -> None:
        setters = {
            n: s for n, s in inspect.getmembers_static(ASGenerationConfigBuilder) if isinstance(s, Setter | Flag)
        }
        assert setters.keys() == GenerationFields.__annotations__.keys() | {"num_return_sequences"}
        assert all(setter.__doc__ and setter.__doc__.endswith(".") for setter in setters.values())

    @pytest.mark.parametrize("name", [n for n, s in vars(GenerationSetters).items() if isinstance(s, Flag)])
    def test_a_switch_is_on_without_a_value(self, name: str) -> None:
        assert getattr(ASGenerationConfigBuilder(), name)().build() == {name: True}
        assert getattr(ASGenerationConfigBuilder(), name)(False).build() == {name: False}

    def test_one_eos_id_may_stand_alone(self) -> None:
        assert ASGenerationConfigBuilder(eos_token_id=5).build() == {"eos_token_id": [5]}
        assert ASGenerationConfigBuilder().eos_token_id([5, 6]).build() == {"eos_token_id": [5, 6]}

    def test_a_later_value_replaces_an_earlier_one(self) -> None:
        builder = ASGenerationConfigBuilder(seed=1).top_k(5).top_p(0.5)
        builder.update({"top_k": 1, "top_p": None})
        assert builder.build() == {"seed": 1, "top_k": 1}

    def test_what_was_built_stands_still(self) -> None:
        builder = ASGenerationConfigBuilder().top_k(5)
        built = builder.build()
        builder.top_k(6)
        assert built == {"top_k": 5}

    @pytest.mark.parametrize(
        ("theirs", "ours"),
        [
            ({"type": "json_object"}, {"type": "json_object"}),
            ({"type": "json_object", "json_schema": '{"type":"integer"}'}, {"json_schema": '{"type":"integer"}'}),
            ({"type": "json_object", "json_schema": {"type": "integer"}}, {"json_schema": '{"type": "integer"}'}),
            ({"type": "json_object", "json_schema": ""}, {"type": "json_object"}),
            ({"type": "regex", "regex": "a+"}, {"regex": "a+"}),
            ({"type": "choice", "choices": ["a"]}, {"type": "choice", "choices": ["a"]}),
        ],
    )
    def test_its_response_format(self, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
        built = ASGenerationConfigBuilder().response_format(theirs).build()
        assert sent(built) == wire(response_format=ours)

    def test_its_other_names(self) -> None:
        builder = ASGenerationConfigBuilder().log_probs(True, 5).num_return_sequences(2)
        assert builder.build() == {"logprobs": True, "top_logprobs": 5, "n": 2}
        items = [{"data": b"x", "mime_type": "image/png"}]
        assert ASGenerationConfigBuilder().with_mm_info(items).build() == {"mm_info": items}

    @pytest.mark.parametrize(
        ("name", "advice"),
        [
            ("temprature", "did you mean temperature"),
            ("max_tokens", "did you mean max_new_tokens"),
            ("num_return_sequence", "num_return_sequences"),
            ("vocab", "leave it out"),
            ("uuid", "request_id"),
            ("nothing_like_it_at_all", "has no field"),
        ],
    )
    def test_a_name_that_is_none_is_an_error_with_the_nearest_one(self, name: str, advice: str) -> None:
        with pytest.raises(TypeError, match=advice):
            ASGenerationConfigBuilder().update({name: 1})

    @pytest.mark.parametrize(
        ("name", "value"),
        [("top_k", "many"), ("top_k", -1), ("temperature", True), ("stop_words_ids", [5]), ("eos_token_id", True)],
    )
    def test_a_wrong_value_is_refused_where_it_is_set(self, name: str, value: object) -> None:
        builder = ASGenerationConfigBuilder().seed(1)
        with pytest.raises(InvalidRequestError, match=name):
            builder.update({"top_p": 0.5, name: value})
        with pytest.raises(InvalidRequestError, match=name):
            getattr(builder, name)(value)
        assert builder.build() == {"seed": 1}

    def test_what_can_be_read_once_only_is_kept(self) -> None:
        config = ASGenerationConfigBuilder().stop_token_ids(iter([1, 2])).build()  # type: ignore[arg-type]
        assert list(sent(config).stop_token_ids) == [1, 2]


class TestLmdeploy:
    def test_its_documented_defaults(self) -> None:
        assert GenerationConfig().build() == {
            "n": 1,
            "max_new_tokens": 512,
            "top_p": 1.0,
            "top_k": 1,
            "temperature": 0.8,
            "repetition_penalty": 1.0,
            "ignore_eos": False,
            "skip_special_tokens": True,
        }

    def test_the_documented_example(self) -> None:
        config = GenerationConfig(top_p=0.8, top_k=40, temperature=0.8, max_new_tokens=1024).build()
        assert {name: config[name] for name in ("top_p", "top_k", "temperature", "max_new_tokens")} == {
            "top_p": 0.8,
            "top_k": 40,
            "temperature": 0.8,
            "max_new_tokens": 1024,
        }
        sent(config)

    def test_its_names(self) -> None:
        config = GenerationConfig(
            random_seed=5, stop_words=["a"], bad_words=["b"], min_new_tokens=2, bad_token_ids=[7, 8], logprobs=3,
            include_stop_str_in_output=True, stop_token_ids=[9],
        ).build()  # fmt: skip
        assert config | {
            "seed": 5, "stop_words": ["a"], "bad_words": ["b"], "min_new_tokens": 2, "bad_words_ids": [[7], [8]],
            "logprobs": True, "top_logprobs": 3, "include_stop": True, "stop_token_ids": [9],
        } == config  # fmt: skip
        sent(config)

    def test_none_is_the_model_s_own_default(self) -> None:
        assert "temperature" not in GenerationConfig(temperature=None).build()
        assert "bad_words_ids" not in GenerationConfig(bad_token_ids=None, logprobs=None).build()

    def test_logprobs_may_be_a_switch_too(self) -> None:
        assert GenerationConfig(logprobs=True).build()["logprobs"] is True
        assert "top_logprobs" not in GenerationConfig(logprobs=True).build()

    @pytest.mark.parametrize(
        ("theirs", "ours"),
        [
            ({"type": "regex_schema", "regex_schema": "a+"}, {"regex": "a+"}),
            (
                {"type": "json_schema", "json_schema": {"name": "t", "schema": {"type": "integer"}}},
                {"json_schema": '{"type": "integer"}'},
            ),
            ({"type": "json_object"}, {"type": "json_object"}),
        ],
    )
    def test_its_response_format(self, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
        config = sent(GenerationConfig(response_format=theirs).build())
        assert config.response_format == wire(response_format=ours).response_format

    def test_a_name_that_is_none_is_an_error_with_the_nearest_one(self) -> None:
        with pytest.raises(TypeError, match="did you mean random_seed"):
            GenerationConfig(random_sed=5)  # type: ignore[call-arg]
        with pytest.raises(InvalidRequestError, match="bad_token_ids"):
            GenerationConfig(bad_token_ids=5)  # type: ignore[arg-type]

    def test_fields_that_only_we_have_are_taken(self) -> None:
        assert GenerationConfig().update({"priority": 3, "deadline": 2.0}).build()["priority"] == 3
