"""gpt-oss: sinks in attention, alternating windows, and experts with biases and clamped gates, often in MXFP4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family, GgufHints, check_absent
from headrace_engine.models.families.from_config import decoder_from_config, windowed_layers
from headrace_engine.models.families.from_metadata import decoder_from_metadata, periodic_layers
from headrace_engine.models.families.mixtures.fields import gguf_experts, read_experts, with_experts
from headrace_engine.models.files import Assembly, StoredTensor
from headrace_engine.models.layout import GGUF_NAMES, HF_NAMES, FileLayout, wrong_shape
from headrace_engine.models.spec import DecoderSpec, GateKind

_ARCHITECTURE = "GptOssForCausalLM"
_HEAD_DIM, _THETA, _WINDOW, _PERIOD = 64, 150_000.0, 128, 2
_CLAMPED = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}
"""Settings of gates, which are those of GateKind.CLAMPED."""
_EPS = 1e-5
_JOINED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""The products that a tensor holds of every expert."""


def _gpt_oss(config: ConfigFields) -> DecoderSpec:
    if config.table("rope_scaling") is None and config.table("rope_parameters") is None:
        raise config.error("rope_scaling", "must say how positions are encoded")
    for name, only in _CLAMPED.items():
        if config.number(name, only) != only:
            raise config.error(name, f"is not supported; supported is {only:g}")
    spec = decoder_from_config(config, _ARCHITECTURE, head_dim=_HEAD_DIM, theta=_THETA)
    slides = [(index + 1) % _PERIOD != 0 for index in range(spec.num_layers)]
    has_bias = config.flag("attention_bias", True)
    spec = replace(
        spec,
        layers=windowed_layers(config, spec.num_layers, slides, _WINDOW),
        norm_eps=config.number("rms_norm_eps", _EPS),
        qkv_bias=has_bias,
        output_bias=has_bias,
    )
    experts = read_experts(config, count="num_local_experts", width="intermediate_size", normalised=True)
    return with_experts(_shaped(spec), replace(experts, bias=True))


def _gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    """Read the metadata; files do not say that the ends of what YaRN blends are not rounded."""
    check_absent(metadata, ("attention.scale", "expert_shared_feed_forward_length"))
    spec = decoder_from_metadata(metadata, "gpt-oss", hints)
    ropes = tuple(replace(rope, truncate=False) for rope in spec.ropes)
    spec = replace(spec, ropes=ropes, layers=periodic_layers(metadata, spec.num_layers, _PERIOD))
    return with_experts(_shaped(spec), replace(gguf_experts(metadata, spec, normalised=True), bias=True))


def _shaped(spec: DecoderSpec) -> DecoderSpec:
    return replace(spec, sinks=True, gate=GateKind.CLAMPED)


def _apart(spec: DecoderSpec, tensors: Mapping[str, StoredTensor], source: str) -> dict[str, StoredTensor]:
    """Return the tensors of a checkpoint with a matrix and a bias for each product of each expert."""
    rest = dict(tensors)
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}.mlp.experts."
        for joined, products in _JOINED.items():
            for suffix, end in (("", "weight"), ("_bias", "bias")):
                tensor = rest.pop(f"{prefix}{joined}{suffix}", None)
                if tensor is not None:
                    _check_shape(tensor, len(products), end, spec, source)
                    rest |= {each.name: each for each in _of_experts(tensor, prefix, products, end)}
    return rest


def _check_shape(tensor: StoredTensor, products: int, end: str, spec: DecoderSpec, source: str) -> None:
    """Refuse a tensor of all experts that is neither [experts, outputs] nor, of matrices, with the inputs.

    These come last in codes, and before the outputs in numbers.
    """
    assert spec.experts is not None
    count, hidden, wide = spec.experts.count, spec.hidden_size, spec.experts.width
    outputs, inputs = (2 * wide, hidden) if products == 2 else (hidden, wide)
    matrix = (outputs, inputs) if tensor.assembly is not None else (inputs, outputs)
    expected = (count, *(matrix if end == "weight" else (outputs,)))
    if tensor.shape != expected:
        raise wrong_shape(tensor, expected, spec, source)


def _of_experts(tensor: StoredTensor, prefix: str, products: Sequence[str], end: str) -> Iterator[StoredTensor]:
    """Yield the matrices or biases of each expert in a tensor where outputs of its products alternate."""
    count, *size = tensor.shape
    if tensor.assembly is None:
        size.reverse()
    shape = (size[0] // len(products), *size[1:])
    layout = "TRANSPOSED" if end == "weight" else "VECTOR"
    whole = tensor.assembly or Assembly(layout, (tensor,), 0)
    for number in range(count):
        parts = tuple(part.rows(number, 1) for part in whole.parts)
        for first, product in enumerate(products):
            yield replace(
                parts[0],
                name=f"{prefix}{number}.{product}.{end}",
                storage=tensor.storage,
                shape=shape,
                nbytes=tensor.nbytes // count // len(products),
                assembly=replace(whole, parts=parts, first=first, step=len(products)),
            )


_HF = {"router": "model.layers.{i}.mlp.router.weight"}
_GGUF = {"post_norm": "blk.{i}.post_attention_norm.weight"}

GPT_OSS = Family(
    from_config={_ARCHITECTURE: _gpt_oss},
    from_metadata={"gpt-oss": _gguf},
    hf=FileLayout({**HF_NAMES, **_HF}),
    gguf=FileLayout({**GGUF_NAMES, **_GGUF}),
    apart=_apart,
)
