"""Fields that change logits: what is refused of them, what the core is told, and how words are spelled."""

from __future__ import annotations

import math
from typing import Any

import pytest
from headrace_engine.engine.config.generation import Limits, resolve
from headrace_engine.engine.config.logit_rules import check_logit_fields, rules_of
from headrace_engine.engine.text.spellings import spellings
from headrace_engine.errors import InvalidArgument
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.sampling_params import LogitRules
from support.models.vocabularies import SPACE, bundle, byte_level, sentencepiece

BYTES, PIECES = bundle(byte_level()), bundle(sentencepiece())


@pytest.mark.parametrize(
    ("name", "value", "field", "words"),
    [
        ("bad_words_ids", ((1,), ()), "bad_words_ids[1]", "empty"),
        ("bad_words_ids", ((1, 384),), "bad_words_ids[0]", "0 to 383"),
        ("bad_words", ("a", ""), "bad_words[1]", "empty"),
        ("bad_words", ("ab" * 20_000,) * 2, "bad_words", "80000 characters in all; allowed: at most 65536"),
        ("bad_words_ids", ((1,) * 40_000,) * 2, "bad_words_ids", "80000 ids in all; allowed: at most 65536"),
        ("allowed_token_ids", (1, 384), "allowed_token_ids", "384"),
        ("logit_bias", {5: 1.0, 384: 1.0}, "logit_bias", "384"),
        ("logit_bias", {5: math.inf}, "logit_bias", "inf for id 5 is not finite"),
        ("logit_bias", {5: math.nan}, "logit_bias", "nan for id 5 is not finite"),
    ],
)
def test_what_means_nothing_is_refused_by_name(name: str, value: Any, field: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        check_logit_fields(GenerationConfig(**{name: value}), 384)
    assert caught.value.violations[0].field == f"config.{field}"


def test_a_config_that_asks_for_nothing_makes_no_rules() -> None:
    effective = resolve(GenerationConfig(), GenerationConfig(), Limits("m", 384, 64, 5), None).effective
    assert rules_of(effective, (), 384) is None


def test_everything_asked_for_is_told() -> None:
    config = GenerationConfig(
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        no_repeat_ngram_size=3,
        bad_words_ids=((1, 2),),
        logit_bias={3: -1.0},
        allowed_token_ids=(4, 5),
    )
    assert rules_of(config, ((6, 7),), 384) == LogitRules(1.2, 0.5, -0.5, 3, ((1, 2), (6, 7)), {3: -1.0}, (4, 5))


def test_suppressed_repetition_leaves_the_presence_penalty() -> None:
    config = GenerationConfig(repetition_penalty=1.2, presence_penalty=0.5, suppress_repetition_in_generation=True)
    assert rules_of(config, (), 384) == LogitRules(presence_penalty=0.5)


def test_bad_words_of_files_with_foreign_ids_are_dropped() -> None:
    config = GenerationConfig(bad_words_ids=((1, 384), (-1,), (), (5,)))
    assert rules_of(config, (), 384) == LogitRules(bad_words=((5,),))


def test_bc056_top_logprobs_need_logprobs() -> None:
    limits = Limits("m", 384, 64, 5)
    with pytest.raises(InvalidArgument, match="top_logprobs = 5 needs logprobs") as caught:
        resolve(GenerationConfig(top_logprobs=5), GenerationConfig(), limits, None)
    assert caught.value.violations[0].field == "config.top_logprobs"
    sampling = resolve(GenerationConfig(logprobs=True, top_logprobs=5), GenerationConfig(), limits, None).sampling
    assert (sampling.logprobs, sampling.top_logprobs) == (True, 5)


@pytest.mark.parametrize("greedy", [{"do_sample": False}, {"temperature": 0.0}, {"top_k": 1}, {}])
def test_a_step_is_told_of_logprobs_whatever_draws(greedy: dict[str, Any]) -> None:
    sent = GenerationConfig(logprobs=True, top_logprobs=20, **greedy)
    sampling = resolve(sent, GenerationConfig(), Limits("m", 384, 64, 5), None).sampling
    assert (sampling.logprobs, sampling.top_logprobs) == (True, 20)


class TestSpellings:
    @pytest.mark.parametrize("word", ["Hello", "wheel", "水", "👍", "a b"])
    def test_of_byte_level_tokenizers_are_with_and_without_a_space(self, word: str) -> None:
        found = spellings(BYTES, [word])
        assert set(found) == {tuple(BYTES.encode(text, add_special_tokens=False)) for text in (word, f" {word}")}

    def test_sentencepiece_has_spellings_at_the_start_and_within(self) -> None:
        """The tokenizer puts a space before a text by itself: "ab" alone is the piece with one."""
        vocabulary = PIECES.tokenizer.get_vocab()
        assert set(spellings(PIECES, ["ab"])) == {(vocabulary["ab"],), (vocabulary[f"{SPACE}ab"],)}

    def test_a_word_that_begins_with_a_space_is_meant_with_it(self) -> None:
        assert spellings(BYTES, [" Hello"]) == (tuple(BYTES.encode(" Hello", add_special_tokens=False)),)
        assert (PIECES.tokenizer.get_vocab()["ab"],) not in spellings(PIECES, [" ab"])

    def test_line_breaks_are_words(self) -> None:
        assert spellings(BYTES, ["\n"]) == (tuple(BYTES.encode("\n", add_special_tokens=False)),)

    def test_names_of_special_tokens_are_those_tokens(self) -> None:
        assert (2,) in spellings(BYTES, ["<|im_end|>"])

    def test_of_several_words_each_comes_once(self) -> None:
        assert spellings(BYTES, ["Hello", "Hello"]) == spellings(BYTES, ["Hello"])
