"""Where the tensors that a decoder needs are in files: their names there, and how their rows lie."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace_engine.errors import BadModel
from headrace_engine.models.files import StoredTensor, TensorInfo
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.models.tensor_shapes import expected_shapes

HF_NAMES: Mapping[str, str] = {
    "embed": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
    "input_norm": "model.layers.{i}.input_layernorm.weight",
    "q": "model.layers.{i}.self_attn.q_proj.weight",
    "k": "model.layers.{i}.self_attn.k_proj.weight",
    "v": "model.layers.{i}.self_attn.v_proj.weight",
    "o": "model.layers.{i}.self_attn.o_proj.weight",
    "post_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "gate": "model.layers.{i}.mlp.gate_proj.weight",
    "up": "model.layers.{i}.mlp.up_proj.weight",
    "down": "model.layers.{i}.mlp.down_proj.weight",
    "q_norm": "model.layers.{i}.self_attn.q_norm.weight",
    "k_norm": "model.layers.{i}.self_attn.k_norm.weight",
    "sinks": "model.layers.{i}.self_attn.sinks",
    "router": "model.layers.{i}.mlp.gate.weight",
    "router_correction": "model.layers.{i}.mlp.gate.e_score_correction_bias",
    "experts.gate": "model.layers.{i}.mlp.experts.{e}.gate_proj.weight",
    "experts.up": "model.layers.{i}.mlp.experts.{e}.up_proj.weight",
    "experts.down": "model.layers.{i}.mlp.experts.{e}.down_proj.weight",
}
"""Names of Llama-like Hugging Face checkpoints, by the canonical name without its numbers."""

GGUF_NAMES: Mapping[str, str] = {
    "embed": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
    "input_norm": "blk.{i}.attn_norm.weight",
    "q": "blk.{i}.attn_q.weight",
    "k": "blk.{i}.attn_k.weight",
    "v": "blk.{i}.attn_v.weight",
    "o": "blk.{i}.attn_output.weight",
    "post_norm": "blk.{i}.ffn_norm.weight",
    "gate": "blk.{i}.ffn_gate.weight",
    "up": "blk.{i}.ffn_up.weight",
    "down": "blk.{i}.ffn_down.weight",
    "q_norm": "blk.{i}.attn_q_norm.weight",
    "k_norm": "blk.{i}.attn_k_norm.weight",
    "attention_out_norm": "blk.{i}.post_attention_norm.weight",
    "mlp_out_norm": "blk.{i}.post_ffw_norm.weight",
    "sinks": "blk.{i}.attn_sinks.weight",
    "router": "blk.{i}.ffn_gate_inp.weight",
    "router_correction": "blk.{i}.exp_probs_b.bias",
    "experts.gate": "blk.{i}.ffn_gate_exps.weight",
    "experts.up": "blk.{i}.ffn_up_exps.weight",
    "experts.down": "blk.{i}.ffn_down_exps.weight",
    "shared_score": "blk.{i}.ffn_gate_inp_shexp.weight",
    "shared_gate": "blk.{i}.ffn_gate_shexp.weight",
    "shared_up": "blk.{i}.ffn_up_shexp.weight",
    "shared_down": "blk.{i}.ffn_down_shexp.weight",
}
"""Names in GGUF files, by the canonical name without its numbers."""


@dataclass(frozen=True, slots=True)
class FileLayout:
    """How files of one format hold a family's tensors.

    Attributes:
        names: by the canonical name without its numbers; {i} is the layer, {e} the expert. Parts with one name are rows
            of one tensor, in the order of `expected_shapes`; all experts may be stacked in a further dimension.
        interleaved: rows of queries and keys have rotary pairs adjacent.
        norm_shift: what is added to the weights of norms.
    """

    names: Mapping[str, str]
    interleaved: bool = False
    norm_shift: float = 0.0


_LAYER = re.compile(r"(?:model\.layers|blk)\.(\d{1,4})\.")
_PREDICTS = "eh_proj.weight"
"""End of the name of the matrix that only layers which predict further ids have."""
_PREDICTING = "model.mtp_"
"""Beginning of the names of other parts that do."""

_CHOOSING = ("router", "router_correction")
"""Last parts of the canonical names of what chooses experts."""

HF_LAYOUT, GGUF_LAYOUT = FileLayout(HF_NAMES), FileLayout(GGUF_NAMES)
"""Of Llama-like models."""


def file_name(canonical: str, names: Mapping[str, str]) -> str:
    """Return the name in a file of a canonical tensor name."""
    numbers = [int(part) for part in canonical.split(".") if part.isdecimal()]
    part = canonical.rpartition(".")[2]
    key = ("experts." if len(numbers) > 1 else "") + part
    name = names.get(key) or names[key.removesuffix("_bias")]
    if key not in names:
        name = name.removesuffix("weight") + "bias"
    return name.format(**dict(zip("ie", numbers, strict=False)))


def bind(
    spec: DecoderSpec, stored: Mapping[str, StoredTensor], layout: FileLayout, source: str, files: Iterable[str]
) -> tuple[dict[str, TensorInfo], list[StoredTensor]]:
    """Find every tensor that the decoder needs; return these by canonical name, and the unused ones.

    Args:
        stored: the tensors in the files, by their names.
        source: origin of the decoder's spec, for messages: "config.json".
        files: names of the files that were read, including empty ones.

    Raises:
        BadModel: a tensor is absent or has another shape.
    """
    bound: dict[str, TensorInfo] = {}
    joined = by_file_name(expected_shapes(spec), layout.names)
    missing = [name for name in joined if name not in stored]
    if missing:
        raise absent(missing, spec, files, source)
    for name, parts in joined.items():
        tensor, first = _whole(stored[name], parts, spec, source), 0
        for canonical, shape in parts.items():
            bound[canonical] = info_of(canonical, tensor.rows(first, shape[0]), spec, layout)
            first += shape[0]
    return bound, [tensor for name, tensor in stored.items() if name not in joined]


def _whole(tensor: StoredTensor, parts: Mapping[str, tuple[int, ...]], spec: DecoderSpec, source: str) -> StoredTensor:
    """Return a tensor in a file as the rows of its parts, without the dimension of stacked experts.

    Raises:
        BadModel: it has another shape.
    """
    rows, inner = sum(shape[0] for shape in parts.values()), next(iter(parts.values()))[1:]
    found = [(rows, *inner)]
    if spec.experts is not None and ".experts." in next(iter(parts)):
        found.insert(0, (spec.experts.count, rows // spec.experts.count, *inner))
    elif rows == 1:
        found.append(inner)
    if tensor.shape not in found:
        raise wrong_shape(tensor, found[0], spec, source)
    if len(parts) > 1 and tensor.nbytes % rows:
        raise tensor.error(f"holds {len(parts)} vectors in blocks of {tensor.storage}, which do not end where they do")
    return replace(tensor, shape=(rows, *inner))


def wrong_shape(tensor: StoredTensor, expected: Sequence[int], spec: DecoderSpec, source: str) -> BadModel:
    """Return an error about a tensor that does not have the shape that the config says."""
    return tensor.error(
        f"is {list(tensor.shape)}, but {source} describes {spec.architecture} with {list(expected)}: "
        "config and weights belong to different models"
    )


def by_file_name(
    shapes: Mapping[str, tuple[int, ...]], names: Mapping[str, str]
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the tensors in the files: the canonical names, with their shapes, that each holds."""
    joined: dict[str, dict[str, tuple[int, ...]]] = {}
    for canonical, shape in shapes.items():
        joined.setdefault(file_name(canonical, names), {})[canonical] = shape
    return joined


def info_of(canonical: str, stored: StoredTensor, spec: DecoderSpec, layout: FileLayout) -> TensorInfo:
    """Return how the rows of a stored tensor become those of the canonical one."""
    part = canonical.rpartition(".")[2]
    if part.endswith("_norm"):
        return TensorInfo(canonical, stored, shift=layout.norm_shift)
    if part in _CHOOSING and spec.experts is not None and (spec.experts.corrected or spec.latent is not None):
        return TensorInfo(canonical, stored, exact=True)
    of_keys = dict.fromkeys(("k", "k_spread"), spec.num_kv_heads)
    heads = {"q": spec.num_heads, **of_keys}.get(part.removesuffix("_bias"), 0)
    if not layout.interleaved or not heads:
        return TensorInfo(canonical, stored)
    return TensorInfo(canonical, stored, interleaved_heads=heads, rotary_dim=spec.rotary_dim)


def name_some(names: Iterable[str]) -> str:
    """Return the first names in full, and the number of the others."""
    listed = list(names)
    shown = ", ".join(listed[:4])
    return shown if len(listed) <= 4 else f"{shown} and {len(listed) - 4} more"


def absent(missing: Sequence[str], spec: DecoderSpec, files: Iterable[str], source: str) -> BadModel:
    """Return an error about tensors that none of the files that were read has."""
    needs = f"{len(missing)} tensor(s) that {spec.architecture} of {source} needs"
    return BadModel(f"{name_some(files)}: {needs} are absent: {name_some(missing)}")


def predicting(rest: Sequence[StoredTensor], layers: int) -> list[StoredTensor]:
    """Return the unused tensors of parts that predict further ids: layers behind the decoder's, or others."""
    numbers = {each.name: int(found[1]) for each in rest if (found := _LAYER.match(each.name))}
    further = {number for name, number in numbers.items() if number >= layers and name.endswith(_PREDICTS)}
    return [each for each in rest if numbers.get(each.name) in further or each.name.startswith(_PREDICTING)]
