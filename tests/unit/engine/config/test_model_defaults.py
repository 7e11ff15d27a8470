"""What a model's own generation_config.json sets."""

from __future__ import annotations

import math
from typing import Any

import pytest
from headrace_engine.engine.config.model_defaults import check_default_ids, model_defaults
from headrace_engine.errors import BadModel
from headrace_engine.generation_config import GenerationConfig

EOS = (2, 0)


def test_bc049_no_file_sets_nothing_but_the_eos_ids() -> None:
    assert model_defaults({}, EOS) == (GenerationConfig(eos_token_id=EOS), ())


def test_bc050_exactly_the_fields_of_the_file_are_set() -> None:
    defaults, warnings = model_defaults({"top_k": 20, "repetition_penalty": 1.0}, EOS)
    assert defaults == GenerationConfig(eos_token_id=EOS, top_k=20, repetition_penalty=1.0)
    assert warnings == ()


def test_bc050_every_honoured_field_is_taken() -> None:
    raw: dict[str, Any] = {
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.05,
        "max_length": 4096,
        "max_new_tokens": 512,
        "min_length": 1,
        "min_new_tokens": 2,
    }
    assert model_defaults(raw, EOS)[0] == GenerationConfig(eos_token_id=EOS, **raw)


@pytest.mark.parametrize(("name", "value"), [("temperature", 1), ("top_p", 1), ("min_p", 0)])
def test_a_whole_number_is_fine_where_a_real_one_is_due(name: str, value: int) -> None:
    defaults, _ = model_defaults({name: value}, EOS)
    assert getattr(defaults, name) == value
    assert type(getattr(defaults, name)) is float


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "0.6"),
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", True),
        ("top_k", 20.5),
        ("top_k", "20"),
        ("top_k", True),
        ("top_k", -1),
        ("top_p", 1.5),
        ("top_p", [0.9]),
        ("do_sample", 1),
        ("do_sample", "true"),
        ("max_length", "20"),
        ("max_length", 20.0),
        ("max_length", 0),
        ("max_new_tokens", [5]),
        ("seed", -1),
        ("min_new_tokens", {"a": 1}),
        ("repetition_penalty", 0),
    ],
)
def test_bc050_a_malformed_value_names_the_field(name: str, value: Any) -> None:
    with pytest.raises(BadModel) as caught:
        model_defaults({name: value}, EOS)
    assert caught.value.reason == "BAD_MODEL"
    assert f"generation_config.json: {name}" in caught.value.message
    assert str(value) in caught.value.message


@pytest.mark.parametrize(("name", "value"), [("early_stopping", "never"), ("num_beams", 4), ("length_penalty", 2.0)])
def test_what_speaks_of_beam_search_is_not_taken(name: str, value: Any) -> None:
    assert model_defaults({name: value}, EOS) == (GenerationConfig(eos_token_id=EOS), ())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("typical_p", 0.9),
        ("forced_eos_token_id", 2),
        ("max_time", 3.0),
        ("num_return_sequences", 4),
        ("watermarking_config", {"bias": 2.5}),
        ("response_format", {"type": "json_object"}),
    ],
)
def test_unsupported_defaults_are_warnings_and_not_applied(name: str, value: Any) -> None:
    defaults, warnings = model_defaults({name: value, "top_k": 5}, EOS)
    assert defaults == GenerationConfig(eos_token_id=EOS, top_k=5)
    (warning,) = warnings
    assert warning.field == f"config.{name}"
    assert f"{name} = " in warning.message
    assert "not applied" in warning.message


@pytest.mark.parametrize(
    "raw",
    [
        {"typical_p": 1.0, "diversity_penalty": 0.0, "encoder_repetition_penalty": 1.0},
        {"suppress_tokens": None, "penalty_alpha": None},
        {"top_k": None, "temperature": None, "bad_words_ids": None},
        {"bos_token_id": 1, "pad_token_id": 0, "transformers_version": "4.50.0", "_from_model_config": True},
        {"repetition_penalty": 1, "no_repeat_ngram_size": 0, "bad_words_ids": []},
    ],
)
def test_what_changes_nothing_is_no_warning(raw: dict[str, Any]) -> None:
    defaults, warnings = model_defaults(raw, EOS)
    assert warnings == ()
    assert defaults.eos_token_id == EOS


def test_eos_ids_come_from_the_files_as_a_whole() -> None:
    """They may stand in several files, so that the reader of the files joins them."""
    assert model_defaults({"eos_token_id": 9}, EOS)[0].eos_token_id == EOS


def test_suppressed_tokens_become_bad_words_beside_named_ones() -> None:
    defaults, warnings = model_defaults({"suppress_tokens": [5, 6], "bad_words_ids": [[1, 2]]}, EOS)
    assert (defaults.bad_words_ids, warnings) == (((1, 2), (5,), (6,)), ())
    assert model_defaults({"suppress_tokens": [5]}, EOS)[0].bad_words_ids == ((5,),)


@pytest.mark.parametrize("strings", ["end", ["end"]])
def test_stop_strings_are_stop_words(strings: object) -> None:
    defaults, warnings = model_defaults({"stop_strings": strings}, EOS)
    assert (defaults.stop_words, warnings) == (("end",), ())


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"stop_strings": ["a", ""]}, r"stop_words\[1\] is empty"),
        ({"stop_words_ids": [[5], []]}, r"stop_words_ids\[1\] is empty"),
        ({"stop_words_ids": [[384]]}, r"stop_words_ids\[0\] holds 384"),
        ({"stop_token_ids": [384]}, "stop_token_ids holds 384"),
    ],
)
def test_stops_of_the_files_that_are_none_are_refused(raw: dict[str, Any], words: str) -> None:
    defaults, _ = model_defaults(raw, EOS)
    with pytest.raises(BadModel, match=rf"^generation_config\.json: {words}"):
        check_default_ids(defaults, 384)


@pytest.mark.parametrize("suppressed", ["abc", [[5]], ["x"]])
def test_malformed_suppressed_tokens_are_an_error(suppressed: object) -> None:
    with pytest.raises(BadModel, match="bad_words_ids"):
        model_defaults({"suppress_tokens": suppressed}, EOS)


@pytest.mark.parametrize("raw", [{"allowed_token_ids": [5, 384]}, {"logit_bias": {"384": 1.0}}])
def test_defaults_about_ids_outside_the_model_are_refused(raw: dict[str, Any]) -> None:
    defaults, _ = model_defaults(raw, EOS)
    with pytest.raises(BadModel, match="holds 384, which is not a valid token id; allowed: 0 to 383") as caught:
        check_default_ids(defaults, 384)
    assert next(iter(raw)) in caught.value.message
    check_default_ids(defaults, 385)


def test_bc050_penalties_and_bad_words_of_the_files_are_taken() -> None:
    raw = {"top_k": 7, "repetition_penalty": 1.05, "no_repeat_ngram_size": 3, "bad_words_ids": [[1, 2], [3]]}
    defaults, warnings = model_defaults(raw, EOS)
    taken = {"top_k": 7, "repetition_penalty": 1.05, "no_repeat_ngram_size": 3, "bad_words_ids": ((1, 2), (3,))}
    assert (defaults, warnings) == (GenerationConfig(eos_token_id=EOS, **taken), ())


@pytest.mark.parametrize("value", [5, "words", [5], [["a"]], [[1.5]]])
def test_bc050_bad_words_that_are_no_id_lists_are_refused(value: Any) -> None:
    with pytest.raises(BadModel, match=r"generation_config\.json: bad_words_ids"):
        model_defaults({"bad_words_ids": value}, EOS)
