"""The text decoders of models that also see: computed for text alone, as their other parts do not change what it says.

Of text, the three positions of a token in Qwen's mrope are equal, so that it rotates as the default embedding does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family
from headrace_engine.models.families.gemma import GEMMA
from headrace_engine.models.families.llama import LLAMA
from headrace_engine.models.families.mistral import MISTRAL
from headrace_engine.models.families.qwen2 import QWEN2
from headrace_engine.models.families.qwen3 import QWEN3
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.spec import DecoderSpec

_Reader = Callable[[ConfigFields], DecoderSpec]

_GEMMA3 = {
    "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131_072,
}  # fmt: skip
_LLAMA = {
    "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 2048,
}  # fmt: skip
_QWEN3_VL = {
    "vocab_size": 151_936, "hidden_size": 4096, "intermediate_size": 22_016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 128_000,
}  # fmt: skip
"""Settings that configs may leave out."""

_KINDS: Mapping[str, tuple[Family, str, Mapping[str, Any]]] = {
    "gemma3_text": (GEMMA, "Gemma3ForCausalLM", _GEMMA3),
    "llama": (LLAMA, "LlamaForCausalLM", _LLAMA),
    "mistral": (MISTRAL, "MistralForCausalLM", {}),
    "ministral3": (MISTRAL, "Ministral3ForCausalLM", {}),
    "qwen2": (QWEN2, "Qwen2ForCausalLM", {}),
    "qwen2_vl": (QWEN2, "Qwen2ForCausalLM", {}),
    "qwen2_vl_text": (QWEN2, "Qwen2ForCausalLM", {}),
    "qwen2_5_vl": (QWEN2, "Qwen2ForCausalLM", {}),
    "qwen2_5_vl_text": (QWEN2, "Qwen2ForCausalLM", {}),
    "qwen3_vl_text": (QWEN3, "Qwen3ForCausalLM", _QWEN3_VL),
}
"""Decoders by the model_type of their part of a config: their family, and their own architecture in it."""

_TYPES = {
    "Gemma3ForConditionalGeneration": ("gemma3_text",),
    "LlavaForConditionalGeneration": ("llama", "mistral", "qwen2"),
    "Mistral3ForConditionalGeneration": ("mistral", "ministral3"),
    "Qwen2VLForConditionalGeneration": ("qwen2_vl", "qwen2_vl_text"),
    "Qwen2_5_VLForConditionalGeneration": ("qwen2_5_vl", "qwen2_5_vl_text"),
    "Qwen3VLForConditionalGeneration": ("qwen3_vl_text",),
}
"""Kinds of decoders of architectures."""
_TIED = ("Gemma3ForConditionalGeneration", "Mistral3ForConditionalGeneration")
"""Architectures whose head is tied where configs do not say."""

_TEXT = {
    "language_model.model.": "model.",
    "model.language_model.": "model.",
    "language_model.lm_head.": "lm_head.",
}
"""Beginnings of the names of the decoders' tensors, and what they are without the other parts."""
_OTHERS = (
    "vision_tower.", "model.vision_tower.", "visual.", "model.visual.", "multi_modal_projector.",
    "model.multi_modal_projector.",
)  # fmt: skip
"""Beginnings of the names of other parts' tensors."""


def _reader(architecture: str) -> _Reader:
    def read(config: ConfigFields) -> DecoderSpec:
        fields = config.table("text_config") or config
        kind = fields.text("model_type")
        if kind not in _TYPES[architecture]:
            raise fields.error("model_type", f"is not supported; supported are {', '.join(_TYPES[architecture])}")
        family, own, defaults = _KINDS[kind]
        absent = {name: value for name, value in defaults.items() if not fields.has(name)}
        tied = config.flag("tie_word_embeddings", architecture in _TIED) or fields.flag("tie_word_embeddings", False)
        changes = {**absent, **_without_mrope(fields), "tie_word_embeddings": tied}
        return replace(family.from_config[own](fields.replacing(changes)), architecture=architecture)

    return read


def _without_mrope(fields: ConfigFields) -> dict[str, Any]:
    """Return the settings of the rotary embedding with the default one in place of mrope."""
    changes = {}
    for name in ("rope_scaling", "rope_parameters"):
        table = fields.get(name)
        if isinstance(table, dict) and "mrope_section" in table:
            changes[name] = {key: "default" if value == "mrope" else value for key, value in table.items()}
    return changes


def _text_tensors(spec: DecoderSpec, tensors: Mapping[str, StoredTensor], source: str) -> dict[str, StoredTensor]:
    """Return the decoder's tensors as files without other parts name them."""
    found: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        if name.startswith(_OTHERS):
            continue
        begin = next((begin for begin in _TEXT if name.startswith(begin)), None)
        own = name if begin is None else _TEXT[begin] + name.removeprefix(begin)
        if own in found:
            raise tensor.error(f"is there twice: {own} is the same")
        found[own] = replace(tensor, name=own)
    return found


def _family(base: Family, *architectures: str) -> Family:
    return Family(
        from_config={name: _reader(name) for name in architectures},
        from_metadata={},
        hf=base.hf,
        apart=_text_tensors,
        note="is computed for text alone: its parts that see are not loaded, and images are not served",
    )


GEMMA_VISION = _family(GEMMA, "Gemma3ForConditionalGeneration")
LLAMA_VISION = _family(LLAMA, *(name for name in _TYPES if name != "Gemma3ForConditionalGeneration"))
