"""What is accepted and looks like a mistake is told, by name, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_engine.engine.config.generation import Limits, filled, resolve
from headrace_engine.engine.config.warnings import CheckedConfig, config_warnings
from headrace_engine.generation_config import GenerationConfig

NEUTRAL = {"early_stopping": True, "use_prefix_cache": True}


def warned(sent: dict[str, Any], *, left: int = 90, caching: bool = True, **effective: Any) -> dict[str, str]:
    """The warnings about a config of which `effective` holds what the model or the engine made of it."""
    asked = GenerationConfig(**sent)
    holds = filled(GenerationConfig(**{**NEUTRAL, **sent, **effective}))
    found = config_warnings(CheckedConfig(asked, holds, 384, left, caching))
    return {warning.field.removeprefix("config."): warning.message for warning in found}


@pytest.mark.parametrize(
    ("sent", "names"),
    [
        ({"do_sample": False, "temperature": 0.7}, ["temperature"]),
        ({"do_sample": False, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 7}, ["top_k", "top_p", "min_p", "seed"]),
        ({"temperature": 0.0, "top_p": 0.9}, ["top_p"]),
        ({"top_k": 1, "temperature": 0.7}, ["temperature"]),
        ({"do_sample": False, "n": 4}, ["n"]),
        ({"top_k": 384}, ["top_k"]),
        ({"max_new_tokens": 91}, ["max_new_tokens"]),
        ({"ignore_eos": True, "early_stopping": False, "eos_token_id": (5,)}, ["eos_token_id"]),
        ({"early_stopping": False, "min_length": 20, "min_new_tokens": 5}, ["min_length", "min_new_tokens"]),
        ({"include_stop": True}, ["include_stop"]),
        ({"suppress_repetition_in_generation": True, "repetition_penalty": 1.2}, ["repetition_penalty"]),
        ({"suppress_repetition_in_generation": True}, ["suppress_repetition_in_generation"]),
        ({"allowed_token_ids": (1, 2), "logit_bias": {2: 1.0, 3: -1.0}}, ["logit_bias"]),
        ({"use_prefix_cache": False, "cache_salt": "a"}, ["cache_salt"]),
    ],
)
def test_a_field_that_changes_nothing_is_named(sent: dict[str, Any], names: list[str]) -> None:
    found = warned(sent)
    assert list(found) == names
    for name, message in found.items():
        assert message.startswith(f"{name} ")


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"do_sample": False},
        {"do_sample": False, "temperature": 0.0, "top_k": 1, "top_p": 1.0, "min_p": 0.0},
        {"temperature": 0.7, "top_k": 383, "top_p": 0.9, "seed": 1, "n": 4},
        {"max_new_tokens": 90},
        {"early_stopping": False, "min_new_tokens": 5, "stop_words": ("end",)},
        {"include_stop": True, "stop_token_ids": (5,)},
        {"suppress_repetition_in_generation": True, "presence_penalty": 0.5, "repetition_penalty": 1.0},
        {"repetition_penalty": 1.2, "suppress_repetition_in_generation": False},
        {"allowed_token_ids": (1, 2), "logit_bias": {2: 1.0}},
        {"logit_bias": {3: 1.0}},
        {"cache_salt": "a"},
        {"eos_token_id": (5,)},
    ],
)
def test_what_has_its_effect_is_not_suspicious(sent: dict[str, Any]) -> None:
    assert warned(sent) == {}


def test_a_warning_names_the_value_and_the_cause() -> None:
    assert warned({"do_sample": False, "temperature": 0.7}) == {
        "temperature": "temperature = 0.7 has no effect with do_sample = False: the most likely token is taken"
    }
    assert warned({"max_new_tokens": 91}, max_length=100) == {
        "max_new_tokens": "max_new_tokens = 91 has no effect: max_length 100 leaves 90 new tokens"
    }
    assert warned({"top_k": 500})["top_k"] == "top_k = 500 has no effect: the model has 384 ids"


def test_many_ids_in_vain_are_cut_in_the_sentence() -> None:
    found = warned({"allowed_token_ids": (1,), "logit_bias": dict.fromkeys(range(2, 20), 1.0)})
    assert found["logit_bias"].endswith("leaves out: 2, 3, 4, 5, 6, …")


@pytest.mark.parametrize(("sent", "names"), [({"use_prefix_cache": True}, ["use_prefix_cache"]), ({}, [])])
def test_a_model_without_a_prefix_cache_says_so(sent: dict[str, Any], names: list[str]) -> None:
    assert list(warned(sent, caching=False)) == names


@pytest.mark.parametrize(("length", "names"), [(1, ["prompt_logprobs"]), (2, [])])
def test_a_prompt_of_one_token_has_no_log_probabilities(length: int, names: list[str]) -> None:
    assert list(warned({"prompt_logprobs": 0}, left=90, max_length=90 + length)) == names


def test_ineffective_model_defaults_are_not_the_callers_fault() -> None:
    assert warned({}, do_sample=False, top_p=0.9, cache_salt="x") == {}


def test_they_come_with_the_resolved_config() -> None:
    limits = Limits("smol", vocab_size=384, max_length=100, prompt_length=10, caching=False)
    sent = GenerationConfig(do_sample=False, top_p=0.5, max_length=20, max_new_tokens=50, use_prefix_cache=True)
    generation = resolve(sent, GenerationConfig(eos_token_id=(2,)), limits, None)
    fields = [warning.field for warning in generation.warnings]
    assert fields == ["config.top_p", "config.max_new_tokens", "config.use_prefix_cache"]
    assert generation.max_new == 10


def test_a_model_default_that_cuts_what_was_sent_is_a_warning() -> None:
    limits = Limits("smol", vocab_size=384, max_length=100, prompt_length=10)
    generation = resolve(GenerationConfig(max_new_tokens=50), GenerationConfig(max_length=20), limits, None)
    assert [warning.message for warning in generation.warnings] == [
        "max_new_tokens = 50 has no effect: max_length 20 leaves 10 new tokens"
    ]
