"""LMDeploy's configs of its two engines, which both become the config of an install."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, TypedDict, Unpack

from google.protobuf.message import Message
from headrace_proto.v1 import runtime_pb2

from headrace._values.refusals import invalid
from headrace.compat.counterparts import not_supported, warn_caller
from headrace.compat.keyword_config import KeywordConfig

_CACHE_FOLDER = "models are kept in the cache of the engine's host: set HF_HOME where it runs"
_KV_BITS = {0: "DEFAULT", 4: "UINT4", 8: "INT8"}
_FORMATS = dict.fromkeys(("hf", "awq", "gptq", "fp8", "compressed-tensors"), "HF")
"""Formats by LMDeploy's name; how files are quantized is found out."""

_OTHER_FORMATS = {
    "llama": "weights in Meta's own layout are not read: take the model in the layout of Hugging Face",
}


class EngineFields(TypedDict, total=False):
    """Fields of both engine configs.

    Attributes:
        model_name: without effect, as in LMDeploy above 0.2.1; anything but "" is warned of.
        tp: number of ranks that share the model, by the engine's backend torch. Default 1.
        session_len: maximum length of a sequence in tokens, prompt and generated. Default: the model's.
        max_batch_size: maximum number of sequences in a step. Default: the engine's own.
        cache_max_entry_count: share of memory, with a warning, as `memory_ratio`: on CUDA of the device's total memory,
            weights included; on a CPU of the memory limit, for keys and values. Default: the engine's own.
        quant_policy: bits of stored keys and values: 8, 4, or 0 for the model's own format. Default 0.
        download_dir: None; models are kept in the cache of the engine's host.
        revision: branch, tag or commit of a hub name. Default: the hub's main branch.
    """

    model_name: str | None
    tp: int | None
    session_len: int | None
    max_batch_size: int | None
    cache_max_entry_count: float | None
    quant_policy: int | None
    download_dir: str | None
    revision: str | None


class TurbomindFields(EngineFields, total=False):
    """The fields of LMDeploy's TurbomindEngineConfig: those of `EngineFields`, and these.

    Attributes:
        model_format: layout of the files: None (found out), "hf", "awq", "gptq", "fp8" or "compressed-tensors"; GGUF
            files, and how files are quantized, are found out too.
        rope_scaling_factor: factor of dynamic NTK scaling; 0.0 = none. Default 0.0.
        use_logn_attn: scale queries by the logarithm of the length. Default False. Only False so far.
    """

    model_format: str | None
    rope_scaling_factor: float | None
    use_logn_attn: bool | None


class PytorchFields(EngineFields, total=False):
    """The fields of LMDeploy's PytorchEngineConfig: those of `EngineFields`, and these.

    Attributes:
        eviction_type: "recompute" what did not fit in memory, or "copy" it to num_cpu_blocks blocks of host memory.
            Default "recompute".
        prefill_interval: 16; steps hold prompts and running answers alike, so there is no interval.
        block_size: tokens in a block of keys and values. Default: the engine's own.
        num_cpu_blocks: blocks in host memory, for "copy". Default 0.
        num_gpu_blocks: blocks of keys and values; 0 = sized from memory. Default 0.
        adapters: paths of LoRA adapters by name, on the engine's host; requests of the client choose one (`lora_name`).
    """

    eviction_type: str | None
    prefill_interval: int | None
    block_size: int | None
    num_cpu_blocks: int | None
    num_gpu_blocks: int | None
    adapters: Mapping[str, str] | None


class EngineConfig(KeywordConfig):
    """Shared part of both engine configs; `build()` returns keywords for `install_model`."""

    message: ClassVar[type[Message]] = runtime_pb2.RuntimeConfig
    foreign: ClassVar[Mapping[str, str]] = {
        "tp": "tensor_parallel", "session_len": "max_length", "max_batch_size": "max_batch",
        "cache_max_entry_count": "memory_ratio", "quant_policy": "kv_cache_mode",
    }  # fmt: skip
    refused: ClassVar[Mapping[str, str]] = {"model_path": "give it to pipeline"}
    unmatched: ClassVar[Mapping[str, tuple[tuple[Any, ...], str]]] = {"download_dir": ((), _CACHE_FOLDER)}

    def translated(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields with their values in our form; warn where LMDeploy's meant something else."""
        changed = dict(fields)
        if changed.pop("model_name", None):
            text = "model_name of an engine config has no effect; give it to pipeline, or a chat_template_config"
            warn_caller(text, DeprecationWarning)
        if changed.get("cache_max_entry_count") is not None:
            warn_caller(
                "cache_max_entry_count becomes memory_ratio: on CUDA the share of a device's total memory, weights "
                "included, and on a CPU the share of the memory limit for keys and values; in LMDeploy it is the share "
                "of free memory for keys and values",
                UserWarning,
            )
        if changed.get("quant_policy") is not None:
            changed["quant_policy"] = _kv_cache_mode(changed["quant_policy"])
        return changed


class TurbomindEngineConfig(EngineConfig):
    """LMDeploy's config of the TurboMind engine.

    Args:
        **fields: fields of `TurbomindFields` above, or any other field of `headrace.fields.InstallFields`.

    Raises:
        TypeError: there is no such field; a similar one is named.
        InvalidRequestError: a value has the wrong type, or no counterpart here.
    """

    defaults: ClassVar[Mapping[str, Any]] = {
        "model_format": None, "tp": 1, "quant_policy": 0, "rope_scaling_factor": 0.0, "use_logn_attn": False,
    }  # fmt: skip
    foreign: ClassVar[Mapping[str, str]] = {
        **EngineConfig.foreign, "model_format": "format", "rope_scaling_factor": "rope_scaling",
        "use_logn_attn": "logn_attention",
    }  # fmt: skip

    def __init__(self, **fields: Unpack[TurbomindFields]) -> None:
        super().__init__(**fields)

    def translated(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields with their values in our form."""
        changed = super().translated(fields)
        layout, factor = changed.get("model_format"), changed.get("rope_scaling_factor")
        if layout is not None:
            if not isinstance(layout, str):
                raise invalid("model_format", layout, "a string")
            if layout in _OTHER_FORMATS:
                raise not_supported("model_format", layout, _OTHER_FORMATS[layout])
            changed["model_format"] = _FORMATS.get(layout, layout)
        if factor is not None:
            if isinstance(factor, float) and not math.isfinite(factor):
                raise invalid("rope_scaling_factor", factor, "a finite number")
            changed["rope_scaling_factor"] = {"type": "DYNAMIC", "factor": factor} if factor else None
        return changed


class PytorchEngineConfig(EngineConfig):
    """LMDeploy's config of the PyTorch engine; which backend computes is the engine's own choice here too.

    Args:
        **fields: fields of `PytorchFields` above, or any other field of `headrace.fields.InstallFields`.

    Raises:
        TypeError: there is no such field; a similar one is named.
        InvalidRequestError: a value has the wrong type, or no counterpart here.
    """

    defaults: ClassVar[Mapping[str, Any]] = {
        "tp": 1, "eviction_type": "recompute", "prefill_interval": 16, "num_cpu_blocks": 0, "num_gpu_blocks": 0,
        "quant_policy": 0,
    }  # fmt: skip
    foreign: ClassVar[Mapping[str, str]] = {
        **EngineConfig.foreign, "num_gpu_blocks": "num_blocks", "num_cpu_blocks": "num_host_blocks",
    }  # fmt: skip
    unmatched: ClassVar[Mapping[str, tuple[tuple[Any, ...], str]]] = {
        **EngineConfig.unmatched,
        "prefill_interval": ((16,), "a step holds prompts and running answers alike, so there is no interval"),
        "eviction_type": (("recompute", "copy"), 'write "recompute" or "copy"'),
    }

    def __init__(self, **fields: Unpack[PytorchFields]) -> None:
        super().__init__(**fields)

    def build(self) -> dict[str, Any]:
        """Return the fields that are set, by our names.

        Raises:
            InvalidRequestError: eviction_type and num_cpu_blocks do not agree.
        """
        kind, blocks = self.eviction_type or "recompute", self.num_cpu_blocks
        if (kind == "copy") != bool(blocks):
            advice = f'with num_cpu_blocks = {blocks!r}: give "copy" and a number of blocks together, or neither'
            raise not_supported("eviction_type", kind, advice)
        return super().build()

    def translated(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields with their values in our form."""
        changed = super().translated(fields)
        if isinstance(changed.get("adapters"), Mapping):
            changed["adapters"] = [{"name": name, "path": path} for name, path in changed["adapters"].items()]
        return changed


def _kv_cache_mode(bits: Any) -> str:
    if isinstance(bits, bool) or not isinstance(bits, int) or bits not in _KV_BITS:
        raise invalid("quant_policy", bits, "0, 4 or 8, the number of bits of keys and values")
    if bits == 4:
        text = (
            "quant_policy = 4 stores keys and values in 4 bits; LMDeploy below 0.4 meant 8 bits by it, which is 8 here"
        )
        warn_caller(text, UserWarning)
    return _KV_BITS[bits]
