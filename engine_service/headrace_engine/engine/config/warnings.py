"""Warnings about valid fields that look like mistakes: they were sent and have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace_engine.engine.config.fields import GENERATION
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.request_types import ConfigWarning
from headrace_engine.sampling_params import RANDOM

_NEUTRAL = {"temperature": 0, "top_k": 1}
"""Values that make decoding greedy too: with them, another cause of it is not worth a warning."""


@dataclass(frozen=True, slots=True)
class CheckedConfig:
    """A config as sent and as in effect, with the properties of the model that decide whether fields have an effect.

    Attributes:
        max_new_tokens: number of tokens that `max_length` leaves for generation after the prompt.
        caching: the model has a prefix cache.
    """

    sent: GenerationConfig
    effective: GenerationConfig
    vocab_size: int
    max_new_tokens: int
    caching: bool = True

    @property
    def stops(self) -> bool:
        """True if a stop word or stop id may end the request."""
        config = self.effective
        return bool(config.stop_words or config.stop_words_ids or config.stop_token_ids)

    def sets(self, name: str) -> bool:
        """True if the caller set this field to a value other than its default."""
        value = getattr(self.sent, name)
        return value not in (None, (), GENERATION[name].default)


def config_warnings(checked: CheckedConfig) -> tuple[ConfigWarning, ...]:
    """Return a warning of one sentence for each field that has no effect."""
    return tuple(ConfigWarning(f"config.{name}", f"{name} {text}") for rule in _RULES for name, text in rule(checked))


def greedy_by(config: GenerationConfig) -> str | None:
    """Return the field that makes decoding greedy; None: tokens are sampled."""
    causes = {"do_sample": False, **_NEUTRAL}
    return next((name for name, value in causes.items() if getattr(config, name) == value), None)


_Found = Iterator[tuple[str, str]]


def _sampling(checked: CheckedConfig) -> _Found:
    config = checked.effective
    cause = greedy_by(config)
    if cause is None:
        if checked.sets("top_k") and (config.top_k or 0) >= checked.vocab_size:
            yield "top_k", f"= {config.top_k} has no effect: the model has {checked.vocab_size} ids"
        return
    why = f"with {cause} = {getattr(config, cause)}: the most likely token is taken"
    for name in RANDOM:
        value = getattr(checked.sent, name)
        if name != cause and checked.sets(name) and value != _NEUTRAL.get(name):
            yield name, f"= {value} has no effect {why}"
    if checked.sets("best_of") and (config.best_of or 1) > (config.n or 1):
        yield "best_of", f"= {config.best_of} generates identical candidates {why}"
    if checked.sets("n") and (config.num_beams or 1) == 1:
        yield "n", f"= {config.n} returns identical sequences {why}"


def _lengths(checked: CheckedConfig) -> _Found:
    wanted, config = checked.sent.max_new_tokens, checked.effective
    if wanted is not None and wanted > checked.max_new_tokens:
        yield (
            "max_new_tokens",
            f"= {wanted} has no effect: max_length {config.max_length} leaves {checked.max_new_tokens} new tokens",
        )
    if not (config.early_stopping or checked.stops):
        for name in ("min_length", "min_new_tokens"):
            if checked.sets(name):
                value = getattr(checked.sent, name)
                yield name, f"= {value} has no effect: EOS is ignored, and there are no stops to hold back"


def _ends(checked: CheckedConfig) -> _Found:
    if checked.sent.eos_token_id and not checked.effective.early_stopping:
        yield "eos_token_id", "has no effect: EOS is ignored (ignore_eos = True)"
    if checked.sets("include_stop") and not checked.stops:
        yield "include_stop", "= True has no effect: there are no stop words and no stop ids"


def _penalties(checked: CheckedConfig) -> _Found:
    config = checked.effective
    if not config.suppress_repetition_in_generation:
        return
    if checked.sets("repetition_penalty"):
        text = f"= {config.repetition_penalty} has no effect with suppress_repetition_in_generation = True"
        yield "repetition_penalty", f"{text}: presence_penalty is used instead"
    elif checked.sets("suppress_repetition_in_generation") and not config.presence_penalty:
        text = "= True has no effect: set presence_penalty, which is used instead of repetition_penalty"
        yield "suppress_repetition_in_generation", text


def _biases(checked: CheckedConfig) -> _Found:
    allowed = checked.effective.allowed_token_ids
    vain = sorted(checked.sent.logit_bias.keys() - set(allowed)) if allowed else []
    if vain:
        shown = ", ".join(map(str, vain[:5])) + (", …" if len(vain) > 5 else "")
        yield "logit_bias", f"has no effect on ids that allowed_token_ids leaves out: {shown}"


def _prefixes(checked: CheckedConfig) -> _Found:
    if not checked.caching:
        if checked.sent.use_prefix_cache:
            yield "use_prefix_cache", "= True has no effect: the model was installed with enable_prefix_cache = False"
    elif checked.sets("cache_salt") and not checked.effective.use_prefix_cache:
        yield "cache_salt", "has no effect with use_prefix_cache = False"


def _prompts(checked: CheckedConfig) -> _Found:
    length = (checked.effective.max_length or 0) - checked.max_new_tokens
    if checked.sets("prompt_logprobs") and length == 1:
        text = "has no effect: the prompt has one token, and the first has no log-probability"
        yield "prompt_logprobs", f"= {checked.sent.prompt_logprobs} {text}"


_RULES = (_sampling, _lengths, _ends, _penalties, _biases, _prefixes, _prompts)
