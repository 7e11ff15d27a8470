"""Converting a GenerationConfig of Hugging Face transformers into our fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from headrace._values.refusals import unknown_name
from headrace.errors import InvalidRequestError


@runtime_checkable
class GenerationConfig(Protocol):
    """The part of transformers.GenerationConfig that is used here."""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, by name."""


_SAME = (
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "do_sample", "temperature", "top_k", "top_p",
    "min_p", "repetition_penalty", "no_repeat_ngram_size", "bad_words_ids",
)  # fmt: skip
"""Fields with the same name and meaning."""

_RENAMED = {"stop_strings": "stop_words", "num_return_sequences": "n", "max_time": "deadline"}

_SILENT = frozenset({
    "pad_token_id", "bos_token_id", "decoder_start_token_id", "transformers_version", "_from_model_config",
    "use_cache", "cache_implementation", "cache_config", "max_cache_len", "return_legacy_cache", "prefill_chunk_size",
    "output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate",
    "renormalize_logits", "remove_invalid_values", "compile_config", "disable_compile", "low_memory",
    "continuous_batching_config", "use_mtp", "speculation_type", "is_assistant", "num_assistant_tokens",
    "num_assistant_tokens_schedule", "assistant_confidence_threshold", "assistant_early_exit",
    "assistant_ensemble_weight", "assistant_lookbehind", "target_lookbehind", "prompt_lookup_num_tokens",
    "max_matching_ngram_size",
})  # fmt: skip
"""Fields that change how transformers computes or what it returns, but not what is generated; they are ignored."""

_NEUTRAL = {
    "num_beam_groups": 1, "diversity_penalty": 0.0, "penalty_alpha": 0.0, "typical_p": 1.0, "top_h": 1.0,
    "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "guidance_scale": 1.0, "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0, "exponential_decay_length_penalty": None, "begin_suppress_tokens": None,
    "sequence_bias": None, "forced_bos_token_id": None, "forced_eos_token_id": None, "force_words_ids": None,
    "constraints": None, "watermarking_config": None, "dola_layers": None, "token_healing": False,
}  # fmt: skip
"""Fields that are not supported, with the value that has no effect."""

_OTHERS = ("eos_token_id", "suppress_tokens", "num_beams", "early_stopping", "length_penalty")

_STOPPING = {False: "HEURISTIC", True: "FIRST", "never": "NEVER"}

KNOWN = (*_SAME, *_RENAMED, *_OTHERS, *_NEUTRAL, *_SILENT)
"""All fields of current and earlier versions of transformers."""


def fields_of(config: GenerationConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are set in a generation config, as keywords of `start_request`.

    Fields that are not set keep the model's own default. `suppress_tokens` become `bad_words_ids`. In transformers
    `early_stopping` and `length_penalty` are about beam search: they are ignored unless `num_beams` is above 1; the
    first then becomes `beam_stopping`.

    Args:
        config: a transformers.GenerationConfig, or the contents of a generation_config.json.

    Raises:
        TypeError: it is not a config, or has a field that transformers does not have; a similar one is named.
        InvalidRequestError: NOT_SUPPORTED; a field that changes what is generated is not supported here.
    """
    given = {name: value for name, value in _as_mapping(config).items() if value is not None}
    for name, value in given.items():
        if name not in KNOWN:
            raise unknown_name(f'a Hugging Face GenerationConfig has no field "{name}"', name, KNOWN)
        if name in _NEUTRAL and value != _NEUTRAL[name]:
            raise _not_supported(name, f"{value!r} of the Hugging Face GenerationConfig")
    fields = {name: given.get(name) for name in _SAME}
    fields |= {ours: given.get(theirs) for theirs, ours in _RENAMED.items()}
    fields["stop_words"] = _listed(fields["stop_words"])
    fields["eos_token_id"] = _listed(given.get("eos_token_id"))
    suppressed = [[token] for token in given.get("suppress_tokens", ())]
    fields["bad_words_ids"] = [*(fields["bad_words_ids"] or ()), *suppressed] or None
    if given.get("num_beams", 1) != 1:
        fields |= _beams(given)
    return {name: value for name, value in fields.items() if value is not None}


def _beams(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a beam search."""
    if given.get("renormalize_logits"):
        raise _not_supported("renormalize_logits", "True of the Hugging Face GenerationConfig, with num_beams above 1,")
    stopping = given.get("early_stopping", False)
    if stopping not in _STOPPING:
        raise _not_supported("early_stopping", f"{stopping!r} of the Hugging Face GenerationConfig")
    return {
        "num_beams": given["num_beams"],
        "length_penalty": given.get("length_penalty"),
        "beam_stopping": _STOPPING[stopping],
    }


def _not_supported(name: str, value: str) -> InvalidRequestError:
    text = f"{name} = {value} is not supported; leave it out"
    return InvalidRequestError(text, reason="NOT_SUPPORTED", details={"field_violations": [_violation(name)]})


def _as_mapping(config: object) -> Mapping[str, Any]:
    if isinstance(config, Mapping):
        return config
    if isinstance(config, GenerationConfig):
        return config.to_dict()
    raise TypeError(f"expected a Hugging Face GenerationConfig or a mapping, not {type(config).__name__}")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, int | str) else value


def _violation(name: str) -> dict[str, str]:
    return {"field": f"config.{name}", "description": "is not supported"}
