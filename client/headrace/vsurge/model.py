"""Stand-ins for EasyDeL's models: what a program says of a model becomes the config of an install."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from headrace._values.calls import install_model
from headrace._values.refusals import invalid, unknown_name
from headrace.compat.counterparts import not_supported
from headrace.fields import InstallFields


class EasyDeLQuantizationMethods(Enum):
    """How weights, or keys and values, are stored."""

    NONE = None
    NF4 = "nf4"
    A8BIT = "8bit"


class EasyDeLGradientCheckPointers(Enum):
    """What training keeps; nothing trains here."""

    NONE = ""
    EVERYTHING_SAVEABLE = "everything_saveable"
    NOTHING_SAVEABLE = "nothing_saveable"
    CHECKPOINT_DOTS = "checkpoint_dots"
    CHECKPOINT_DOTS_WITH_NO_BATCH_DMIS = "checkpoint_dots_with_no_batch_dims"


class AttentionMechanisms(Enum):
    """Kernels of attention; the engine's backend chooses its own, over paged keys and values."""

    AUTO = "auto"
    FLASH_ATTN2 = "flash_attn2"
    RING = "ring"
    VANILLA = "vanilla"
    SPLASH = "splash"
    CUDNN = "cudnn"
    BLOCKWISE = "blockwise"
    SDPA = "sdpa"
    CUDA_FLASH_ATTN2 = "cuda_flash_attn2"
    PAGED_ATTENTION = "paged_attention"
    RAGGED_PAGE_ATTENTION = "ragged_page_attention"
    REGRESSIVE_DECODE = "autoregressive_decodeattn"


class PartitionAxis:
    """Names of the axes along which a model is divided; only those of EasyDeL itself, since nothing is divided here."""

    def __init__(self, **axes: Any) -> None:
        for name, value in axes.items():
            raise not_supported(name, value, "leave the axes of PartitionAxis out")


EasyDeLBaseConfigDict = dict
"""A dict of a model's config: see `AutoEasyDeLModelForCausalLM.from_pretrained`."""

_DTYPES = {"bfloat16": "BFLOAT16", "float16": "FLOAT16", "float32": "FLOAT32"}
_LENGTHS = ("mask_max_position_embeddings", "freq_max_position_embeddings")
_PAGED = (
    AttentionMechanisms.AUTO, AttentionMechanisms.PAGED_ATTENTION, AttentionMechanisms.RAGGED_PAGE_ATTENTION,
    AttentionMechanisms.REGRESSIVE_DECODE,
)  # fmt: skip
_CONFIG = (
    *_LENGTHS, "kv_cache_quantization_method", "gradient_checkpointing", "attn_mechanism", "decode_attn_mechanism",
    "kvdtype", "attn_dtype",
)  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A model by its path and the config that it is installed with.

    Attributes:
        path: directory, file or hub name, on the engine's host.
        fields: fields of `headrace.fields.InstallFields`.
    """

    path: str
    fields: Mapping[str, Any]


class AutoEasyDeLModelForCausalLM:
    """Names a model; it is read by the engine, when a vSurge of it is compiled or started."""

    @staticmethod
    def from_pretrained(
        pretrained_model_name_or_path: str,
        *,
        dtype: Any = None,
        param_dtype: Any = None,
        precision: Any = None,
        auto_shard_model: bool = True,
        sharding_axis_dims: Sequence[int] = (1, -1, 1, 1, 1),
        partition_axis: PartitionAxis | None = None,
        quantization_method: Any = None,
        config_kwargs: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Model:
        """Return what a vSurge needs to know of a model.

        Args:
            pretrained_model_name_or_path: directory, file or hub name, on the engine's host.
            dtype: number format to compute in, as a name or as jax, numpy or torch have it; None: that of the files.
            param_dtype: None, or the same as dtype.
            precision: None or DEFAULT.
            auto_shard_model: without effect: the engine uses one device, or as many as tensor_parallel says.
            sharding_axis_dims: sizes of the axes; -1 is as many devices as there are. The last but one is
                tensor_parallel; the others must be 1 or -1.
            partition_axis: None, or a PartitionAxis.
            quantization_method: how weights are stored: None, NONE, or A8BIT for `weight_quant` INT8.
            config_kwargs: mask_max_position_embeddings and freq_max_position_embeddings (`max_length`; equal),
                kv_cache_quantization_method (None, NONE, or A8BIT for `kv_cache_mode` INT8), kvdtype and attn_dtype
                (None, or the same as dtype), gradient_checkpointing (NONE), attn_mechanism and decode_attn_mechanism
                (AUTO, or one over paged keys and values, which all are here).
            **fields: fields of `headrace.fields.InstallFields`.

        Raises:
            TypeError: there is no such argument; a similar one is named.
            InvalidRequestError: a value has the wrong type, or no counterpart here.
        """
        _check_dims(sharding_axis_dims)
        _check_axis_and_precision(partition_axis, precision)
        number = _dtype("dtype", dtype)
        _check_equal("param_dtype", param_dtype, number)
        known: dict[str, Any] = {
            "dtype": number,
            "tensor_parallel": sharding_axis_dims[-2] if sharding_axis_dims[-2] > 1 else None,
            "weight_quant": _quantization("quantization_method", quantization_method, 'weight_quant="INT4"'),
            **_config(config_kwargs or {}, number),
        }
        found = {name: value for name, value in {**known, **fields}.items() if value is not None}
        # It checks names and types, before anything runs.
        checked = cast(InstallFields, found)
        install_model("model", pretrained_model_name_or_path, engine_ids=(), no_wait=False, fields=checked)
        return Model(pretrained_model_name_or_path, found)


def _config(given: Mapping[str, Any], dtype: str | None) -> dict[str, Any]:
    for name in given:
        if name not in _CONFIG:
            raise unknown_name(f'config_kwargs has no "{name}" that is supported', name, _CONFIG)
    lengths = {given[name] for name in _LENGTHS if given.get(name) is not None}
    if len(lengths) > 1:
        raise not_supported(_LENGTHS[1], given[_LENGTHS[1]], f"give the same as {_LENGTHS[0]}: it is the length alone")
    if given.get("gradient_checkpointing") not in (None, "", EasyDeLGradientCheckPointers.NONE):
        raise not_supported("gradient_checkpointing", given["gradient_checkpointing"], "nothing trains here: give NONE")
    for name in ("attn_mechanism", "decode_attn_mechanism"):
        if given.get(name) not in (None, *_PAGED, *(each.value for each in _PAGED)):
            raise not_supported(name, given[name], "the engine's backend chooses its kernels: give AUTO")
    for name in ("kvdtype", "attn_dtype"):
        _check_equal(name, given.get(name), dtype)
    kind = given.get("kv_cache_quantization_method")
    name = "kv_cache_quantization_method"
    return {"max_length": lengths.pop() if lengths else None, "kv_cache_mode": _quantization(name, kind, _UINT4)}


_UINT4 = 'kv_cache_mode="UINT4"'


def _quantization(name: str, kind: Any, four_bits: str) -> str | None:
    value = kind.value if isinstance(kind, Enum) else kind
    if value in (None, "", "none"):
        return None
    if value == EasyDeLQuantizationMethods.A8BIT.value:
        return "INT8"
    raise not_supported(name, kind, f"give NONE, A8BIT, or {four_bits} to from_pretrained for 4 bits")


def _dtype(name: str, value: Any) -> str | None:
    """Return a number format by the name that a value has in jax, numpy or torch."""
    if value is None:
        return None
    spelled = value if isinstance(value, str) else getattr(value, "__name__", None) or getattr(value, "name", None)
    found = _DTYPES.get(str(spelled or value).rpartition(".")[2].lower())
    if found is None:
        raise invalid(name, value, f"one of {', '.join(_DTYPES)}")
    return found


def _check_equal(name: str, value: Any, dtype: str | None) -> None:
    found = _dtype(name, value)
    if found not in (None, dtype):
        raise not_supported(name, value, "weights, keys and values have one format: give the same as dtype")


def _check_axis_and_precision(partition_axis: Any, precision: Any) -> None:
    if partition_axis is not None and not isinstance(partition_axis, PartitionAxis):
        raise not_supported("partition_axis", partition_axis, "give PartitionAxis(), or leave it out")
    if getattr(precision, "name", precision) not in (None, "DEFAULT"):
        raise not_supported("precision", precision, "dtype says how exactly to compute: give DEFAULT")


def _check_dims(dims: Sequence[int]) -> None:
    if len(dims) < 2 or not all(isinstance(size, int) for size in dims):
        raise invalid("sharding_axis_dims", dims, "the sizes of the axes, such as (1, 1, 1, -1, 1)")
    if any(size not in (1, -1) for index, size in enumerate(dims) if index != len(dims) - 2):
        raise not_supported("sharding_axis_dims", tuple(dims), "only the last but one, tensor parallelism, may be more")
