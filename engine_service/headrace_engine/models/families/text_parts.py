"""The text decoders of models that also see: computed for text alone, as their other parts do not change what it says.

Of Llama 3.2 Vision, the layers that attend to images do nothing without one, and are left out.
Of text, the three positions of a token in Qwen's mrope are equal, so that it rotates as the default embedding does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import MAX_LAYERS, Family
from headrace_engine.models.families.gemma import GEMMA
from headrace_engine.models.families.llama import LLAMA
from headrace_engine.models.families.mistral import MISTRAL
from headrace_engine.models.families.mixtures.qwen_moe import QWEN_MOE
from headrace_engine.models.families.phi3 import PHI3
from headrace_engine.models.families.qwen import QWEN2, QWEN3
from headrace_engine.models.files import Assembly, StoredTensor
from headrace_engine.models.layout import HF_NAMES, wrong_shape
from headrace_engine.models.spec import DecoderSpec

_Reader = Callable[[ConfigFields], DecoderSpec]
_Apart = Callable[[DecoderSpec, Mapping[str, StoredTensor], str], dict[str, StoredTensor]]

_MLLAMA_NAME, _PHI3_NAME = "MllamaForConditionalGeneration", "Phi3VForCausalLM"
_LAYER = re.compile(r"model\.layers\.(\d{1,4})\.")
_IMAGE_MARKS = 8
"""Rows of Llama 3.2 Vision's embedding beyond its vocabulary."""

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
_QWEN3_VL_MOE = {
    "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 128_000,
    "moe_intermediate_size": 1408, "num_experts": 60, "num_experts_per_tok": 4,
}  # fmt: skip
_MLLAMA = {
    "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 131_072, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5,
}  # fmt: skip
"""Settings that configs may leave out."""
_MLLAMA_LAYERS, _MLLAMA_IMAGES = 40, (3, 8, 13, 18, 23, 28, 33, 38)
"""Layers of Llama 3.2 Vision, and those of them that attend to images, where configs do not say."""

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
    "qwen3_vl_moe_text": (QWEN_MOE, "Qwen3MoeForCausalLM", {**_QWEN3_VL_MOE, "norm_topk_prob": True}),
}
"""Decoders by the model_type of their part of a config: their family, and their own architecture in it."""

_TYPES = {
    "Gemma3ForConditionalGeneration": ("gemma3_text",),
    "LlavaForConditionalGeneration": ("llama", "mistral", "qwen2"),
    "Mistral3ForConditionalGeneration": ("mistral", "ministral3"),
    "Qwen2VLForConditionalGeneration": ("qwen2_vl", "qwen2_vl_text"),
    "Qwen2_5_VLForConditionalGeneration": ("qwen2_5_vl", "qwen2_5_vl_text"),
    "Qwen3VLForConditionalGeneration": ("qwen3_vl_text",),
    "Qwen3VLMoeForConditionalGeneration": ("qwen3_vl_moe_text",),
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
_TOWER = ("vision_tower.", "model.vision_tower.", "multi_modal_projector.", "model.multi_modal_projector.")
_VISUAL = ("visual.", "model.visual.")
_MLLAMA_PARTS = ("vision_model.", "model.vision_model.", "multi_modal_projector.", "model.multi_modal_projector.")
_PHI3 = "model.vision_embed_tokens."
_PHI3_PARTS = tuple(f"{_PHI3}{name}" for name in ("img_processor.", "img_projection.", "glb_GN", "sub_GN"))
"""Beginnings of the names of other parts' tensors."""
_SEEING = re.compile(r"(cross_attn\.|cross_attn_(attn|mlp)_gate$|(input|post_attention)_layernorm\.|mlp\.)")
"""Beginnings of names within a layer of Llama 3.2 Vision that attends to images."""


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
        begin = next((begin for begin in _TEXT if name.startswith(begin)), None)
        own = name if begin is None else _TEXT[begin] + name.removeprefix(begin)
        if own in found:
            raise tensor.error(f"is there twice: {own} is the same")
        found[own] = replace(tensor, name=own)
    return found


def _mllama(config: ConfigFields) -> DecoderSpec:
    fields = config.table("text_config") or config
    count = fields.integer("num_hidden_layers", _MLLAMA_LAYERS, maximum=MAX_LAYERS)
    seeing = fields.get("cross_attention_layers")
    seeing = _MLLAMA_IMAGES if seeing is None else seeing
    if not isinstance(seeing, list | tuple) or any(type(each) is not int or not 0 <= each < count for each in seeing):
        raise fields.error("cross_attention_layers", f"must list layers from 0 to {count - 1}")
    if len(set(seeing)) == count:
        raise fields.error("cross_attention_layers", "leaves no layer that attends to text")
    absent = {name: value for name, value in _MLLAMA.items() if not fields.has(name)}
    changes = {**absent, "num_hidden_layers": count - len(set(seeing))}
    spec = LLAMA.from_config["LlamaForCausalLM"](fields.replacing(changes))
    return replace(spec, architecture=_MLLAMA_NAME)


def _phi3(config: ConfigFields) -> DecoderSpec:
    return replace(PHI3.from_config["Phi3ForCausalLM"](config), architecture=_PHI3_NAME)


def _without_images(spec: DecoderSpec, tensors: Mapping[str, StoredTensor], source: str) -> dict[str, StoredTensor]:
    """Return the decoder's tensors, its layers numbered without those that attend to images.

    The rows of the embedding beyond the vocabulary mark images.
    """
    found = _text_tensors(spec, tensors, source)
    layers = {name: int(number[1]) for name in found if (number := _LAYER.match(name))}
    seeing = {number for name, number in layers.items() if ".cross_attn" in name}
    for name in layers:
        if layers[name] in seeing and not _SEEING.match(name.split(".", 3)[3]):
            raise found[name].error("is of a layer that attends to images, and such layers have none of that name")
    kept = {number: place for place, number in enumerate(sorted(set(layers.values()) - seeing))}
    renamed = {}
    for name, tensor in found.items():
        if name not in layers:
            renamed[name] = tensor
        elif layers[name] in kept:
            own = f"model.layers.{kept[layers[name]]}.{name.split('.', 3)[3]}"
            renamed[own] = replace(tensor, name=own)
    embed = renamed.get(HF_NAMES["embed"])
    if embed is not None and embed.shape == (spec.vocab_size + _IMAGE_MARKS, spec.hidden_size):
        renamed[embed.name] = embed.rows(0, spec.vocab_size)
    return renamed


def _experts_apart(spec: DecoderSpec, tensors: Mapping[str, StoredTensor], source: str) -> dict[str, StoredTensor]:
    """Return the decoder's tensors, with a matrix for each product of each expert."""
    found = _text_tensors(spec, tensors, source)
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}.mlp.experts."
        joined = {name: found.pop(f"{prefix}{name}", None) for name in ("gate_up_proj", "down_proj")}
        both, down = joined.values()
        if both is not None and down is not None:
            found |= {each.name: each for each in _of_experts(both, down, prefix, spec, source)}
    return found


def _of_experts(
    both: StoredTensor, down: StoredTensor, prefix: str, spec: DecoderSpec, source: str
) -> Iterator[StoredTensor]:
    """Yield the matrices of experts. Files have inputs before outputs, as published, or behind them."""
    assert spec.experts is not None
    count, hidden, wide = spec.experts.count, spec.hidden_size, spec.experts.width
    sizes = {both: (2 * wide, hidden), down: (hidden, wide)}
    turned = all(tensor.shape == (count, inputs, outputs) for tensor, (outputs, inputs) in sizes.items())
    for tensor, products in ((both, ("gate_proj", "up_proj")), (down, ("down_proj",))):
        outputs, inputs = sizes[tensor]
        expected = (count, inputs, outputs) if turned else (count, outputs, inputs)
        if tensor.shape != expected:
            raise wrong_shape(tensor, expected, spec, source)
        size = outputs // len(products)
        for number in range(count):
            part = tensor.rows(number, 1)
            for place, product in enumerate(products):
                name = f"{prefix}{number}.{product}.weight"
                if turned:
                    made = Assembly("TRANSPOSED", (part,), 0, first=place * size)
                    nbytes = part.nbytes // len(products)
                    yield replace(part, name=name, shape=(size, inputs), nbytes=nbytes, assembly=made)
                else:
                    matrix = replace(part, shape=(outputs, inputs)).rows(place * size, size)
                    yield replace(matrix, name=name)


def _family(
    base: Family, readers: Mapping[str, _Reader], others: tuple[str, ...], apart: _Apart = _text_tensors
) -> Family:
    return Family(
        from_config=readers,
        from_metadata={},
        hf=base.hf,
        apart=apart,
        others=others,
        note="is computed for text alone: its parts that see are not loaded, and images are not served",
    )


def _readers(*architectures: str) -> dict[str, _Reader]:
    return {f"{name}ForConditionalGeneration": _reader(f"{name}ForConditionalGeneration") for name in architectures}


GEMMA_VISION = _family(GEMMA, _readers("Gemma3"), _TOWER)
LLAVA = _family(LLAMA, _readers("Llava", "Mistral3"), _TOWER)
QWEN_VISION = _family(QWEN2, _readers("Qwen2VL", "Qwen2_5_VL", "Qwen3VL"), _VISUAL)
QWEN_MOE_VISION = _family(QWEN_MOE, _readers("Qwen3VLMoe"), _VISUAL, _experts_apart)
MLLAMA_TEXT = _family(LLAMA, {_MLLAMA_NAME: _mllama}, _MLLAMA_PARTS, _without_images)
PHI3_VISION = replace(_family(PHI3, {_PHI3_NAME: _phi3}, _PHI3_PARTS), copies={f"{_PHI3}wte.weight": HF_NAMES["embed"]})
