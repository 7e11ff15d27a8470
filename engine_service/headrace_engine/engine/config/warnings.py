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
class Asked:
    """A config as sent and as in effect, with the properties of the model that decide whether fields have an effect.

    Attributes:
        room: number of tokens that `max_length` leaves for generation after the prompt.
        caching: the model has a prefix cache.
    """

    sent: GenerationConfig
    effective: GenerationConfig
    vocab_size: int
    room: int
    caching: bool = True

    @property
    def stops(self) -> bool:
        """True if a stop word or stop id may end the request."""
        config = self.effective
        return bool(config.stop_words or config.stop_words_ids or config.stop_token_ids)

    def asks(self, name: str) -> bool:
        """True if the caller set this field to a value other than its default."""
        value = getattr(self.sent, name)
        return value not in (None, (), GENERATION[name].default)


def suspicions(asked: Asked) -> tuple[ConfigWarning, ...]:
    """Return a warning of one sentence for each field that has no effect."""
    return tuple(ConfigWarning(f"config.{name}", f"{name} {text}") for rule in _RULES for name, text in rule(asked))


def greedy_by(config: GenerationConfig) -> str | None:
    """Return the field that makes decoding greedy; None: tokens are sampled."""
    causes = {"do_sample": False, **_NEUTRAL}
    return next((name for name, value in causes.items() if getattr(config, name) == value), None)


_Found = Iterator[tuple[str, str]]


def _sampling(asked: Asked) -> _Found:
    config = asked.effective
    cause = greedy_by(config)
    if cause is None:
        if asked.asks("top_k") and (config.top_k or 0) >= asked.vocab_size:
            yield "top_k", f"= {config.top_k} has no effect: the model has {asked.vocab_size} ids"
        return
    why = f"with {cause} = {getattr(config, cause)}: the most likely token is taken"
    for name in RANDOM:
        value = getattr(asked.sent, name)
        if name != cause and asked.asks(name) and value != _NEUTRAL.get(name):
            yield name, f"= {value} has no effect {why}"
    if asked.asks("best_of") and (config.best_of or 1) > (config.n or 1):
        yield "best_of", f"= {config.best_of} generates identical candidates {why}"
    if asked.asks("n"):
        yield "n", f"= {config.n} returns identical sequences {why}"


def _lengths(asked: Asked) -> _Found:
    wanted, config = asked.sent.max_new_tokens, asked.effective
    if wanted is not None and wanted > asked.room:
        yield (
            "max_new_tokens",
            f"= {wanted} has no effect: max_length {config.max_length} leaves {asked.room} new tokens",
        )
    if not (config.early_stopping or asked.stops):
        for name in ("min_length", "min_new_tokens"):
            if asked.asks(name):
                value = getattr(asked.sent, name)
                yield name, f"= {value} has no effect: EOS is ignored, and there are no stops to hold back"


def _ends(asked: Asked) -> _Found:
    if asked.sent.eos_token_id and not asked.effective.early_stopping:
        yield "eos_token_id", "has no effect: EOS is ignored (ignore_eos = True)"
    if asked.asks("include_stop") and not asked.stops:
        yield "include_stop", "= True has no effect: there are no stop words and no stop ids"


def _penalties(asked: Asked) -> _Found:
    config = asked.effective
    if not config.suppress_repetition_in_generation:
        return
    if asked.asks("repetition_penalty"):
        text = f"= {config.repetition_penalty} has no effect with suppress_repetition_in_generation = True"
        yield "repetition_penalty", f"{text}: presence_penalty is used instead"
    elif asked.asks("suppress_repetition_in_generation") and not config.presence_penalty:
        text = "= True has no effect: set presence_penalty, which is used instead of repetition_penalty"
        yield "suppress_repetition_in_generation", text


def _biases(asked: Asked) -> _Found:
    allowed = asked.effective.allowed_token_ids
    vain = sorted(asked.sent.logit_bias.keys() - set(allowed)) if allowed else []
    if vain:
        shown = ", ".join(map(str, vain[:5])) + (", …" if len(vain) > 5 else "")
        yield "logit_bias", f"has no effect on ids that allowed_token_ids leaves out: {shown}"


def _prefixes(asked: Asked) -> _Found:
    if not asked.caching:
        if asked.sent.use_prefix_cache:
            yield "use_prefix_cache", "= True has no effect: the model was installed with enable_prefix_cache = False"
    elif asked.asks("cache_salt") and not asked.effective.use_prefix_cache:
        yield "cache_salt", "has no effect with use_prefix_cache = False"


def _prompts(asked: Asked) -> _Found:
    length = (asked.effective.max_length or 0) - asked.room
    if asked.asks("prompt_logprobs") and length == 1:
        text = "has no effect: the prompt has one token, and the first has no log-probability"
        yield "prompt_logprobs", f"= {asked.sent.prompt_logprobs} {text}"


_RULES = (_sampling, _lengths, _ends, _penalties, _biases, _prefixes, _prompts)
