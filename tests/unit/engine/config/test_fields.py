"""The tables of fields: complete, and precise in what they refuse."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, get_origin, get_type_hints

import pytest
from headrace_engine.config import Lease, RuntimeConfig
from headrace_engine.engine.config.field_checks import Field, check, is_set
from headrace_engine.engine.config.fields import GENERATION, RUNTIME
from headrace_engine.errors import InvalidArgument
from headrace_engine.generation_config import BeamStopping, GenerationConfig, InterruptPolicy


def refusal(config: GenerationConfig | RuntimeConfig) -> InvalidArgument:
    table = GENERATION if isinstance(config, GenerationConfig) else RUNTIME
    with pytest.raises(InvalidArgument) as caught:
        check(config, table, "config.")
    return caught.value


def accept(config: GenerationConfig | RuntimeConfig) -> None:
    check(config, GENERATION if isinstance(config, GenerationConfig) else RUNTIME, "config.")


def generation(**values: Any) -> GenerationConfig:
    return GenerationConfig(**values)


def runtime(**values: Any) -> RuntimeConfig:
    return RuntimeConfig(**values)


class TestSizes:
    @pytest.mark.parametrize("name", ["eos_token_id", "stop_words", "stop_words_ids", "stop_token_ids", "bad_words"])
    def test_a_list_has_a_limit(self, name: str) -> None:
        error = refusal(generation(**{name: (1,) * (4096 + 1)}))
        assert (error.reason, error.violations[0].field) == ("INVALID_FIELD", f"config.{name}")
        assert error.violations[0].description == "has 4097 entries; allowed: at most 4096"

    def test_a_list_may_be_that_long(self) -> None:
        accept(generation(eos_token_id=(1,) * 4096))

    def test_every_list_is_bounded_but_those_of_all_vocabulary_ids(self) -> None:
        lists = {name for name, hint in get_type_hints(GenerationConfig).items() if get_origin(hint) is tuple}
        assert lists - {name for name, field in GENERATION.items() if field.most} == {"allowed_token_ids"}


class TestTables:
    def test_every_field_of_the_generation_config_is_listed(self) -> None:
        assert list(GENERATION) == [field.name for field in fields(GenerationConfig)]

    def test_every_field_of_the_runtime_config_is_listed(self) -> None:
        assert list(RUNTIME) == [field.name for field in fields(RuntimeConfig)]

    @pytest.mark.parametrize("field", [*GENERATION.values(), *RUNTIME.values()], ids=lambda field: field.name)
    def test_a_default_is_in_range_and_honoured(self, field: Field) -> None:
        if field.default is not None:
            assert field.violation(field.default) is None
            assert field.honoured is None or field.default in field.honoured

    def test_defaults_are_those_of_the_contract(self) -> None:
        defaults = {name: field.default for name, field in GENERATION.items() if field.default is not None}
        assert defaults == {
            "do_sample": True,
            "temperature": 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "n": 1,
            "logprobs": False,
            "top_logprobs": 0,
            "min_length": 0,
            "min_new_tokens": 0,
            "early_stopping": True,
            "ignore_eos": False,
            "include_stop": False,
            "no_repeat_ngram_size": 0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "suppress_repetition_in_generation": False,
            "num_beams": 1,
            "beam_stopping": BeamStopping.HEURISTIC,
            "length_penalty": 1.0,
            "lora_name": "",
            "enable_tensors_from_model_inference": False,
            "skip_special_tokens": True,
            "use_prefix_cache": True,
            "cache_salt": "",
            "use_speculation": True,
            "priority": 0,
            "interrupt_policy": InterruptPolicy.RESUME,
        }

    def test_runtime_defaults_are_those_of_the_contract(self) -> None:
        assert RUNTIME["block_size"].default == 16
        assert (RUNTIME["max_waiting"].default, RUNTIME["drain_limit"].default) == (256, 30.0)
        assert RUNTIME["enable_prefix_cache"].default is True


OUT_OF_RANGE = [
    ("temperature", -1.0, "at least 0"),
    ("temperature", math.inf, "at least 0"),
    ("temperature", math.nan, "at least 0"),
    ("top_p", -0.1, "above 0, at most 1"),
    ("top_p", 0.0, "above 0, at most 1"),
    ("top_p", 1.5, "above 0, at most 1"),
    ("top_p", math.nan, "above 0, at most 1"),
    ("top_k", -5, "at least 0, at most 4294967295"),
    ("repetition_penalty", 0.0, "above 0, at most 2"),
    ("repetition_penalty", -1.0, "above 0, at most 2"),
    ("repetition_penalty", math.nan, "above 0, at most 2"),
    ("repetition_penalty", 2.01, "above 0, at most 2"),
    ("min_p", -0.01, "at least 0, at most 1"),
    ("min_p", 1.01, "at least 0, at most 1"),
    ("min_p", math.nan, "at least 0, at most 1"),
    ("seed", -1, "at least 0, at most 18446744073709551615"),
    ("seed", 2**64, "at least 0, at most 18446744073709551615"),
    ("max_length", 0, "at least 1"),
    ("max_new_tokens", 0, "at least 1, at most 4294967295"),
    ("min_length", -1, "at least 0, at most 4294967295"),
    ("min_new_tokens", -1, "at least 0, at most 4294967295"),
    ("n", 0, "at least 1, at most 64"),
    ("n", 65, "at least 1, at most 64"),
    ("best_of", 0, "at least 1, at most 64"),
    ("best_of", 65, "at least 1, at most 64"),
    ("num_beams", 0, "at least 1, at most 64"),
    ("no_repeat_ngram_size", -1, "at least 0, at most 4294967295"),
    ("presence_penalty", -2.5, "at least -2, at most 2"),
    ("presence_penalty", math.inf, "at least -2, at most 2"),
    ("frequency_penalty", 2.5, "at least -2, at most 2"),
    ("frequency_penalty", -math.inf, "at least -2, at most 2"),
    ("length_penalty", math.nan, "any finite number"),
    ("top_logprobs", 21, "at least 0, at most 20"),
    ("prompt_logprobs", 21, "at least 0, at most 20"),
    ("priority", 2**31, "at least -2147483648, at most 2147483647"),
    ("deadline", 0.0, "above 0"),
    ("deadline", -1.0, "above 0"),
]


class TestRanges:
    @pytest.mark.parametrize(("name", "value", "allowed"), OUT_OF_RANGE)
    def test_bc042_a_value_out_of_range_is_refused_with_the_range(self, name: str, value: float, allowed: str) -> None:
        error = refusal(generation(**{name: value}))
        assert error.reason == "INVALID_FIELD"
        assert [violation.field for violation in error.violations] == [f"config.{name}"]
        assert f"= {value}" in error.violations[0].description
        assert error.violations[0].description.endswith(f"allowed: {allowed}")
        assert name in error.message

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("temperature", 0.0),
            ("temperature", 1e9),
            ("top_k", 0),
            ("top_k", 2**31),
            ("top_k", 2**32 - 1),
            ("top_p", 1.0),
            ("top_p", 5e-324),
            ("min_p", 0.0),
            ("min_p", 1.0),
            ("seed", 0),
            ("seed", 2**64 - 1),
            ("repetition_penalty", 1.0),
            ("priority", -(2**31)),
            ("max_new_tokens", 2**32 - 1),
        ],
    )
    def test_bc042_the_edges_are_allowed(self, name: str, value: float) -> None:
        accept(generation(**{name: value}))

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("max_batch", 0),
            ("max_length", 1),
            ("max_prefill_tokens", 0),
            ("block_size", 4),
            ("block_size", 256),
            ("num_threads", -1),
            ("num_blocks", -1),
            ("memory_ratio", 0.0),
            ("memory_ratio", 1.1),
            ("memory_ratio", math.nan),
            ("drain_limit", -1.0),
            ("drain_limit", math.inf),
            ("max_waiting", -1),
            ("default_seed", 2**64),
        ],
    )
    def test_of_the_runtime_config(self, name: str, value: float) -> None:
        error = refusal(runtime(**{name: value}))
        assert (error.reason, error.violations[0].field) == ("INVALID_FIELD", f"config.{name}")

    def test_all_wrong_fields_are_named_at_once(self) -> None:
        error = refusal(generation(temperature=-1.0, top_p=2.0, n=3))
        assert [violation.field for violation in error.violations] == ["config.temperature", "config.top_p"]
        assert "temperature = -1.0" in error.message
        assert "top_p = 2.0" in error.message


NOT_HONOURED = [
    ("mm_info", (object(),)),
]


class TestNotSupported:
    @pytest.mark.parametrize(("name", "value"), NOT_HONOURED)
    def test_what_is_not_built_is_refused_by_name(self, name: str, value: Any) -> None:
        error = refusal(generation(**{name: value}))
        assert error.reason == "NOT_SUPPORTED"
        assert [violation.field for violation in error.violations] == [f"config.{name}"]
        assert error.message.startswith(f"{name} ")
        assert "is not supported by this engine yet" in error.message

    def test_the_refusal_shows_the_value_and_what_is_allowed(self) -> None:
        text = {name: refusal(generation(**{name: value})).message for name, value in NOT_HONOURED}
        assert text["mm_info"] == "mm_info is not supported by this engine yet"

    def test_empty_lists_are_unset(self) -> None:
        accept(generation(stop_words=(), stop_token_ids=(), bad_words=(), logit_bias={}, eos_token_id=()))

    def test_every_honoured_field_is_accepted(self) -> None:
        accept(
            generation(
                do_sample=False,
                temperature=0.7,
                top_k=5,
                top_p=0.9,
                min_p=0.05,
                seed=7,
                max_length=100,
                max_new_tokens=10,
                logprobs=True,
                min_length=3,
                min_new_tokens=2,
                early_stopping=False,
                ignore_eos=True,
                eos_token_id=(1, 2),
                skip_special_tokens=False,
                use_prefix_cache=False,
                cache_salt="tenant",
                priority=-3,
                deadline=2.5,
                lease=Lease(running=5.0),
                interrupt_policy=InterruptPolicy.RETURN,
            )
        )

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("weight_quant_group_size", 24),
            ("logn_attention", True),
        ],
    )
    def test_of_the_runtime_config(self, name: str, value: Any) -> None:
        error = refusal(runtime(**{name: value}))
        assert (error.reason, error.violations[0].field) == ("NOT_SUPPORTED", f"config.{name}")

    @pytest.mark.parametrize("name", ["lora_max_num", "lora_max_rank"])
    def test_b8_what_asks_for_nothing_is_no_refusal(self, name: str) -> None:
        check(runtime(**{name: 0}), RUNTIME, "config.")

    def test_out_of_range_is_reported_before_not_supported(self) -> None:
        error = refusal(generation(top_logprobs=5, n=100))
        assert (error.reason, error.violations[0].field) == ("INVALID_FIELD", "config.n")


@pytest.mark.parametrize(
    ("value", "expected"), [(None, False), ((), False), ({}, False), (0, True), (0.0, True), (False, True), ("", True)]
)
def test_zero_false_and_the_empty_text_are_set(value: Any, expected: bool) -> None:
    assert is_set(value) is expected
