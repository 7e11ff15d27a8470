"""From the config that was sent to the one that holds."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_engine.engine.config.field_checks import ID_PORTION, check_ids, tuple_of
from headrace_engine.engine.config.generation import Generation, Limits, check_prompt, resolve
from headrace_engine.errors import InvalidArgument
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.sampling_params import SamplingParams
from headrace_proto.v1.generation_pb2 import TokenIds

ENGINE_MAX = 100
EOS = (2, 0)


def resolved(
    sent: dict[str, Any] | None = None,
    *,
    defaults: dict[str, Any] | None = None,
    prompt: int = 10,
    default_seed: int | None = None,
) -> Generation:
    model = GenerationConfig(**{"eos_token_id": EOS, **(defaults or {})})
    return resolve(GenerationConfig(**(sent or {})), model, Limits("smol", 384, ENGINE_MAX, prompt), default_seed)


def refused(sent: dict[str, Any], **more: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        resolved(sent, **more)
    return caught.value


class TestPrecedence:
    def test_unset_fields_have_the_defaults_of_the_contract(self) -> None:
        config = resolved().effective
        assert (config.do_sample, config.temperature, config.top_k, config.top_p, config.min_p) == (
            True,
            1.0,
            0,
            1.0,
            0.0,
        )
        assert (config.max_length, config.max_new_tokens, config.n, config.best_of) == (ENGINE_MAX, None, 1, 1)

    def test_bc049_request_precedes_model_precedes_default(self) -> None:
        defaults = {"temperature": 0.1, "top_k": 40}
        config = resolved({"temperature": 0.7}, defaults=defaults).effective
        assert (config.temperature, config.top_k, config.top_p) == (0.7, 40, 1.0)
        assert resolved(defaults=defaults).effective.temperature == 0.1

    @pytest.mark.parametrize(
        ("name", "zero", "default"),
        [
            ("temperature", 0.0, 0.7),
            ("top_k", 0, 50),
            ("min_p", 0.0, 0.1),
            ("min_length", 0, 20),
            ("min_new_tokens", 0, 20),
            ("seed", 0, 9),
            ("priority", 0, 5),
            ("do_sample", False, True),
            ("skip_special_tokens", False, True),
            ("use_prefix_cache", False, True),
        ],
    )
    def test_an_explicit_zero_is_kept(self, name: str, zero: Any, default: Any) -> None:
        config = resolved({name: zero}, defaults={name: default}).effective
        assert getattr(config, name) == zero

    def test_what_is_sent_is_echoed_exactly(self) -> None:
        sent = {"temperature": 0.1 + 0.2, "top_p": 1 / 3, "min_p": 1e-300, "seed": 2**64 - 1}
        config = resolved(sent).effective
        assert {name: getattr(config, name) for name in sent} == sent


class TestSeed:
    def test_of_the_request_comes_first(self) -> None:
        assert resolved({"seed": 0}, default_seed=7).sampling.seed == 0

    def test_of_the_runtime_config_is_for_requests_without_one(self) -> None:
        assert resolved(default_seed=7).sampling.seed == 7
        assert resolved(default_seed=0, defaults={"seed": 9}).sampling.seed == 0

    def test_otherwise_one_is_drawn_and_reported(self) -> None:
        drawn = [resolved() for _ in range(8)]
        assert len({generation.sampling.seed for generation in drawn}) == 8
        assert all(generation.effective.seed == generation.sampling.seed for generation in drawn)
        assert all(0 <= generation.sampling.seed < 2**64 for generation in drawn)


class TestSampling:
    def test_the_step_is_told_what_was_asked(self) -> None:
        sent: dict[str, Any] = {
            "temperature": 0.7,
            "top_k": 5,
            "top_p": 0.9,
            "min_p": 0.05,
            "seed": 3,
            "logprobs": True,
        }
        assert resolved(sent).sampling == SamplingParams(**sent)

    @pytest.mark.parametrize("sent", [{"do_sample": False}, {"temperature": 0.0}, {"top_k": 1}])
    def test_greedy_whatever_the_other_fields_say(self, sent: dict[str, Any]) -> None:
        sampling = resolved({"temperature": 0.7, "top_k": 5, "top_p": 0.5, "logprobs": True, "seed": 1} | sent).sampling
        assert sampling == SamplingParams(temperature=0.0, seed=1, logprobs=True)

    @pytest.mark.parametrize(
        ("sent", "fields"),
        [
            ({"do_sample": False, "temperature": 0.7, "top_p": 0.9}, ["config.temperature", "config.top_p"]),
            ({"temperature": 0.0, "top_k": 5}, ["config.top_k"]),
            ({"top_k": 1, "min_p": 0.1}, ["config.min_p"]),
            ({"do_sample": False, "temperature": 0.0, "top_k": 1, "top_p": 1.0}, []),
            ({"do_sample": False}, []),
            ({"temperature": 0.7, "top_p": 0.9, "seed": 4}, []),
        ],
    )
    def test_a_field_that_asks_in_vain_is_a_warning(self, sent: dict[str, Any], fields: list[str]) -> None:
        assert [warning.field for warning in resolved(sent).warnings] == fields

    def test_a_warning_names_value_and_cause(self) -> None:
        (warning,) = resolved({"do_sample": False, "top_p": 0.9}).warnings
        assert "top_p = 0.9" in warning.message
        assert "do_sample = False" in warning.message

    def test_the_model_s_own_greedy_default_is_a_cause_too(self) -> None:
        (warning,) = resolved({"top_p": 0.9}, defaults={"do_sample": False}).warnings
        assert warning.field == "config.top_p"


class TestUpperLengths:
    @pytest.mark.parametrize(
        ("sent", "max_length", "max_new"),
        [
            ({}, 100, 90),
            ({"max_length": 12}, 12, 2),
            ({"max_length": 100}, 100, 90),
            ({"max_new_tokens": 5}, 100, 5),
            ({"max_new_tokens": 90}, 100, 90),
            ({"max_length": 30, "max_new_tokens": 5}, 30, 5),
            ({"max_length": 12, "max_new_tokens": 5}, 12, 2),
        ],
    )
    def test_bc032_max_length_counts_the_prompt_and_the_tighter_wins(
        self, sent: dict[str, Any], max_length: int, max_new: int
    ) -> None:
        generation = resolved(sent)
        assert (generation.effective.max_length, generation.max_new) == (max_length, max_new)
        assert generation.effective.max_new_tokens == sent.get("max_new_tokens")

    @pytest.mark.parametrize("max_length", [10, 5, 1])
    def test_bc032_a_max_length_within_the_prompt_is_refused(self, max_length: int) -> None:
        error = refused({"max_length": max_length})
        assert error.violations[0].field == "config.max_length"
        assert f"max_length = {max_length}" in error.message
        assert "the prompt has 10 tokens, so at least 11 is needed" in error.message

    def test_bc031_a_too_large_max_length_names_limit_and_prompt(self) -> None:
        error = refused({"max_length": 101})
        assert error.reason == "INVALID_FIELD"
        assert "max_length = 101 is out of range; allowed: 1 to 100" in error.message
        assert "the prompt has 10 tokens" in error.message

    @pytest.mark.parametrize(("sent", "limit"), [({}, 100), ({"max_length": 100}, 100), ({"max_length": 40}, 40)])
    def test_the_tighter_limit_holds_whoever_set_it(self, sent: dict[str, int], limit: int) -> None:
        generation = resolved({"max_new_tokens": 5000, **sent})
        assert generation.max_new == limit - 10
        (warning,) = generation.warnings
        assert warning.field == "config.max_new_tokens"
        assert warning.message.endswith(f"= 5000 has no effect: max_length {limit} leaves {limit - 10} new tokens")

    def test_bc028_a_prompt_of_all_but_one_token_yields_one(self) -> None:
        assert resolved(prompt=ENGINE_MAX - 1).max_new == 1

    @pytest.mark.parametrize(("default", "shown"), [(50, 50), (100, 100), (5000, 100)])
    def test_a_max_length_of_the_model_s_files_is_lowered_and_shown(self, default: int, shown: int) -> None:
        assert resolved(defaults={"max_length": default}).effective.max_length == shown

    @pytest.mark.parametrize(("default", "shown"), [(20, 20), (5000, 90)])
    def test_a_models_max_new_tokens_is_lowered_and_shown(self, default: int, shown: int) -> None:
        generation = resolved(defaults={"max_new_tokens": default})
        assert (generation.effective.max_new_tokens, generation.max_new) == (shown, shown)

    def test_a_default_that_leaves_no_tokens_is_refused(self) -> None:
        error = refused({}, defaults={"max_length": 10})
        assert error.reason == "PROMPT_TOO_LONG"
        assert "max_length = 10 leaves no room: the prompt has 10 tokens" in error.message


class TestLowerLengths:
    @pytest.mark.parametrize(
        ("sent", "min_new"),
        [
            ({}, 0),
            ({"min_length": 5}, 0),
            ({"min_length": 10}, 0),
            ({"min_length": 13}, 3),
            ({"min_new_tokens": 4}, 4),
            ({"min_length": 13, "min_new_tokens": 4}, 4),
            ({"min_length": 20, "min_new_tokens": 4}, 10),
            ({"min_length": 100}, 90),
            ({"max_new_tokens": 4, "min_new_tokens": 4}, 4),
        ],
    )
    def test_bc032_min_length_counts_the_prompt_and_both_must_hold(self, sent: dict[str, Any], min_new: int) -> None:
        assert resolved(sent).min_new == min_new

    @pytest.mark.parametrize(
        ("sent", "field", "value"),
        [
            ({"min_length": 101}, "min_length", 101),
            ({"min_new_tokens": 91}, "min_new_tokens", 91),
            ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens", 5),
            ({"min_length": 20, "max_length": 15}, "min_length", 20),
        ],
    )
    def test_a_minimum_that_cannot_be_reached_is_refused(self, sent: dict[str, Any], field: str, value: int) -> None:
        error = refused(sent)
        assert error.violations[0].field == f"config.{field}"
        assert f"{field} = {value} cannot be reached: prompt 10" in error.message

    def test_a_models_minimum_gives_way_and_is_shown(self) -> None:
        generation = resolved({"max_new_tokens": 5}, defaults={"min_new_tokens": 20, "min_length": 50})
        assert generation.min_new == 5
        assert (generation.effective.min_new_tokens, generation.effective.min_length) == (5, 15)


class TestEos:
    def test_the_model_s_ids_end_a_request(self) -> None:
        assert resolved().eos_ids == EOS

    def test_the_request_s_own_ids_replace_them(self) -> None:
        generation = resolved({"eos_token_id": (7, 383)})
        assert generation.eos_ids == (7, 383)
        assert generation.effective.eos_token_id == (7, 383)

    @pytest.mark.parametrize("sent", [{"ignore_eos": True}, {"early_stopping": False}])
    def test_switched_off_none_does(self, sent: dict[str, Any]) -> None:
        generation = resolved(sent)
        assert generation.eos_ids == ()
        assert (generation.effective.early_stopping, generation.effective.ignore_eos) == (False, True)
        assert generation.effective.eos_token_id == EOS

    @pytest.mark.parametrize("sent", [{"ignore_eos": False}, {"early_stopping": True}, {}])
    def test_switched_on_both_switches_are_shown_in_step(self, sent: dict[str, Any]) -> None:
        generation = resolved(sent)
        assert (generation.effective.early_stopping, generation.effective.ignore_eos) == (True, False)

    @pytest.mark.parametrize("value", [True, False])
    def test_a_contradiction_is_an_error(self, value: bool) -> None:
        error = refused({"ignore_eos": value, "early_stopping": value})
        assert error.violations[0].field == "config.ignore_eos"
        assert f"ignore_eos = {value} contradicts early_stopping = {value}" in error.message

    @pytest.mark.parametrize("value", [True, False])
    def test_both_switches_may_agree(self, value: bool) -> None:
        assert bool(resolved({"ignore_eos": value, "early_stopping": not value}).eos_ids) is not value

    @pytest.mark.parametrize("wrong", [-1, 384, 2**32 - 1])
    def test_an_id_outside_the_vocabulary_is_refused(self, wrong: int) -> None:
        error = refused({"eos_token_id": (2, wrong)})
        assert error.violations[0].field == "config.eos_token_id"
        assert f"holds {wrong}" in error.message
        assert "allowed: 0 to 383" in error.message


class TestPrompt:
    def check(self, ids: Any) -> InvalidArgument:
        with pytest.raises(InvalidArgument) as caught:
            check_prompt(ids, 384, ENGINE_MAX, "smol")
        assert caught.value.violations[0].field == "prompt"
        return caught.value

    def test_bc063_an_empty_prompt_is_refused(self) -> None:
        assert "is empty" in self.check(()).message

    @pytest.mark.parametrize("wrong", [-1, 384, 2**31 - 1, 2**32 - 1, 1.5, (1, 2), "7", None])
    def test_bc064_what_is_no_id_is_refused(self, wrong: Any) -> None:
        error = self.check((1, wrong, 2))
        assert error.reason == "INVALID_FIELD"
        assert f"holds {wrong!r}, which is not a valid token id; allowed: 0 to 383" in error.message

    @pytest.mark.parametrize("length", [ENGINE_MAX, ENGINE_MAX + 1, 5000])
    def test_bc028_a_prompt_that_leaves_no_tokens_is_refused(self, length: int) -> None:
        error = self.check((1,) * length)
        assert error.reason == "PROMPT_TOO_LONG"
        assert f'has {length} tokens; model "smol" takes at most 99 (max_length 100)' in error.message

    @pytest.mark.parametrize("length", [1, ENGINE_MAX - 1])
    def test_bc028_up_to_one_less_than_max_length_is_accepted(self, length: int) -> None:
        check_prompt((383,) * length, 384, ENGINE_MAX, "smol")

    def test_every_id_of_the_vocabulary_is_one(self) -> None:
        check_ids("token_ids", range(384), 384)

    @pytest.mark.parametrize("wrong", [384, 7, None])
    def test_one_wrong_id_among_many_is_found(self, wrong: Any) -> None:
        ids = [1] * (3 * ID_PORTION)
        check_ids("token_ids", ids, 384, frozenset({7}))
        ids[2 * ID_PORTION + 5] = wrong
        with pytest.raises(InvalidArgument, match=f"holds {wrong}"):
            check_ids("token_ids", ids, 384, frozenset({7}))

    @pytest.mark.parametrize("length", [0, 1, ID_PORTION, ID_PORTION + 1])
    def test_ids_of_a_message_become_a_tuple(self, length: int) -> None:
        sent = TokenIds(ids=range(length))
        check_ids("token_ids", sent.ids, length)
        assert tuple_of(sent.ids) == tuple(range(length))
