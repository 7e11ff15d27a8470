"""Whatever is sent: it is refused by name, or it holds as it was sent, together with all that was left out."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_type_hints

from headrace_engine.config import Lease
from headrace_engine.engine.config.field_checks import is_set
from headrace_engine.engine.config.fields import GENERATION
from headrace_engine.engine.config.generation import Generation, Limits, resolve
from headrace_engine.errors import InvalidArgument
from headrace_engine.generation_config import GenerationConfig, InterruptPolicy
from hypothesis import event, given, settings
from hypothesis import strategies as st

VOCABULARY = 50

ids = st.lists(st.integers(-1, VOCABULARY), max_size=3).map(tuple)
words = st.lists(st.text(max_size=2), max_size=2).map(tuple)
reals = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5]), st.floats())
few = st.one_of(st.integers(-1, 3), st.integers(0, 130), st.sampled_from([2**31, 2**32, 2**64]))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "eos_token_id": ids,
    "stop_token_ids": ids,
    "allowed_token_ids": ids,
    "stop_words": words,
    "bad_words": words,
    "stop_words_ids": st.lists(ids, max_size=2).map(tuple),
    "bad_words_ids": st.lists(ids, max_size=2).map(tuple),
    "logit_bias": st.dictionaries(st.integers(-1, VOCABULARY), reals, max_size=2),
    "response_format": st.none(),
    "mm_info": st.just(()),
    "lora_name": st.sampled_from(["", "a"]),
    "cache_salt": st.text(max_size=3),
    "interrupt_policy": st.sampled_from(InterruptPolicy),
    "lease": st.builds(Lease, running=st.none() | reals, ended=st.none() | reals),
}
FLOATS = {name for name, hint in get_type_hints(GenerationConfig).items() if hint == float | None}
FLAGS = {name for name, field in GENERATION.items() if isinstance(field.default, bool)}


def value_of(name: str) -> st.SearchStrategy[Any]:
    if name in VALUES:
        return VALUES[name]
    return st.booleans() if name in FLAGS else reals if name in FLOATS else few


@st.composite
def configs(draw: st.DrawFn) -> GenerationConfig:
    """Configs with a handful of fields set, often wrongly."""
    names = draw(st.lists(st.sampled_from(list(GENERATION)), unique=True, max_size=6))
    return GenerationConfig(**{name: draw(value_of(name)) for name in names})


@st.composite
def model_defaults(draw: st.DrawFn) -> GenerationConfig:
    """What a model's files may set: in range, if not always within this engine's limits."""
    return GenerationConfig(
        eos_token_id=(2,),
        temperature=draw(st.none() | st.floats(0, 2)),
        top_k=draw(st.none() | st.integers(0, 60)),
        do_sample=draw(st.none() | st.booleans()),
        max_length=draw(st.none() | st.integers(30, 500)),
        max_new_tokens=draw(st.none() | st.integers(1, 500)),
        min_length=draw(st.none() | st.integers(0, 500)),
        min_new_tokens=draw(st.none() | st.integers(0, 500)),
        seed=draw(st.none() | st.integers(0, 5)),
    )


LIMITS = Limits("smol", vocab_size=VOCABULARY, max_length=100, prompt_length=20, max_lease=3600.0)
JOINED = {"early_stopping", "ignore_eos", "lease"}
"""Fields that are told together with another, or with both of their parts."""


def outcome(sent: GenerationConfig, defaults: GenerationConfig) -> Generation | InvalidArgument:
    try:
        return resolve(sent, defaults, LIMITS, None)
    except InvalidArgument as error:
        return error


@settings(max_examples=400, deadline=None)
@given(configs(), model_defaults())
def test_a_config_is_refused_by_name_or_holds(sent: GenerationConfig, defaults: GenerationConfig) -> None:
    found = outcome(sent, defaults)
    if isinstance(found, InvalidArgument):
        event(f"refused: {found.reason}")
        assert found.violations
        for violation in found.violations:
            name = violation.field.removeprefix("config.").partition("[")[0].partition(".")[0]
            assert is_set(getattr(sent, name)), "refused for a field that was not sent"
            assert violation.description
        return
    event("holds")
    for field in fields(GenerationConfig):
        value = getattr(sent, field.name)
        if is_set(value) and field.name not in JOINED:
            assert getattr(found.effective, field.name) == value, field.name


@settings(max_examples=400, deadline=None)
@given(configs(), model_defaults())
def test_what_holds_is_in_range_and_whole(sent: GenerationConfig, defaults: GenerationConfig) -> None:
    found = outcome(sent, defaults)
    if isinstance(found, InvalidArgument):
        return
    effective = found.effective
    for name, field in GENERATION.items():
        value = getattr(effective, name)
        assert value is None or field.violation(value) is None
        assert is_set(value) or field.default is None
    assert effective.seed is not None
    assert effective.early_stopping is not effective.ignore_eos
    assert 1 <= found.max_new <= 80
    assert 0 <= found.min_new <= found.max_new
    assert found.max_new <= (effective.max_new_tokens or 80)
    assert 20 + found.max_new <= (effective.max_length or 100) <= 100
    assert found.sampling.seed == effective.seed
    assert bool(found.eos_ids) is effective.early_stopping


@settings(max_examples=200, deadline=None)
@given(configs(), model_defaults())
def test_an_effective_config_sent_again_holds_as_it_is(sent: GenerationConfig, defaults: GenerationConfig) -> None:
    found = outcome(sent, defaults)
    if isinstance(found, InvalidArgument):
        return
    again = outcome(found.effective, defaults)
    assert not isinstance(again, InvalidArgument), again.message
    assert replace(again.effective, seed=found.effective.seed) == found.effective
    assert (again.max_new, again.min_new, again.eos_ids) == (found.max_new, found.min_new, found.eos_ids)
