"""Configs of installs with the names of DashInfer.

    config = AsModelRuntimeConfigBuilder().model_name("smol").model_dir("/models", "smol").max_batch(8).build()
    engine.install_model(config)

Invalid values and unknown names raise when they are set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Self

from google.protobuf.message import Message
from headrace_proto.v1 import runtime_pb2

from headrace._values.builders import ConfigBuilder, Flag, Setter
from headrace._values.refusals import invalid
from headrace.allspark.di_config import runtime_fields, section
from headrace.fields import Seconds


class AsCacheMode(Enum):
    """How keys and values are stored."""

    AsCacheDefault = "DEFAULT"
    AsCacheQuantI8 = "INT8"
    AsCacheQuantU4 = "UINT4"


class TargetDevice(Enum):
    """Kind of compute device."""

    CUDA = "CUDA"
    CPU = "CPU"
    CPU_NUMA = "CPU_NUMA"


class AsModelConfig(dict[str, Any]):
    """The config of an install: keywords for `headrace.Client.install_model`, also as attributes.

    Attributes have DashInfer's names or ours. One that is not set is None: the engine's default.

        config.engine_max_length  # also config["max_length"], if set
    """

    def __getattr__(self, name: str) -> Any:
        return self.get(_keyword(name))

    def __setattr__(self, name: str, value: Any) -> None:
        keyword, changed = _keyword(name), AsModelRuntimeConfigBuilder().update({name: value}).build()
        self.pop(keyword, None)
        self.update(changed)


class AsModelRuntimeConfigBuilder(ConfigBuilder):
    """Builds the config of an install.

    All methods but `build` return the builder. Fields, ranges and defaults are those of
    `headrace.fields.InstallFields`; DashInfer's names are accepted too. A field that is not set has the engine's
    default.
    """

    message: ClassVar[type[Message]] = runtime_pb2.RuntimeConfig
    foreign: ClassVar[Mapping[str, str]] = {
        "name": "model_name", "path": "model_path", "engine_max_length": "max_length", "engine_max_batch": "max_batch",
        "engine_max_prefill_length": "max_prefill_tokens", "max_prefill_length": "max_prefill_tokens",
        "cache_mode": "kv_cache_mode", "kv_cache_span_size": "block_size", "cache_span_size": "block_size",
        "prefill_cache": "enable_prefix_cache", "thread_num": "num_threads", "user_set_data_type": "dtype",
    }  # fmt: skip
    refused: ClassVar[Mapping[str, str]] = {
        "weights_path": "model_file_path(file, weights) and model_dir(folder, prefix) set both files",
        "enable_sparsity_matmul": "weights are multiplied whole; weight_quant makes them smaller",
        "set_span_init_size": "num_blocks sets the size of the KV pool",
        "cache_span_num_init": "num_blocks sets the size of the KV pool",
        "eviction_strategy": "the cache drops what was not used for longest",
        "scheduling_strategy": "requests are ordered by their priority, then by arrival",
        "prefill_mode": "the backend chooses its kernels",
        "swap_threshold": "weights stay on the device; num_host_blocks gives cached prefixes host memory",
        "matmul_precision": "dtype sets the precision",
        "text_graph": "the format of the files is found out from them",
        "is_text_model": "the format of the files is found out from them",
        "lora_names": "adapters lists adapters with their paths",
        "reserve_size_mb": "memory_ratio is the share of the device's memory to use",
        "parse_device_type": "set_compute_unit_from_str takes the string",
    }
    neutral: ClassVar[Mapping[str, Any]] = {
        "enable_sparsity_matmul": False, "cache_span_num_init": 0, "eviction_strategy": "MaxLength",
        "scheduling_strategy": "ContextPriority", "prefill_mode": "AsPrefillDefault", "swap_threshold": -1,
        "matmul_precision": "highest", "text_graph": False, "is_text_model": False, "lora_names": [],
    }  # fmt: skip

    model_name = Setter[str]("Name for all later calls; unique in one engine.")
    model_path = Setter[str]("Directory, file or hub name, on the engine's host.")
    num_threads = Setter[int]("Number of compute threads on a CPU; 0: the available physical CPU cores.")
    thread_num = Setter[int]("Number of compute threads on a CPU; 0: the available physical CPU cores.")
    max_batch = Setter[int]("Maximum number of sequences in a step.")
    max_length = Setter[int]("Maximum length of a sequence in tokens, prompt and generated.")
    max_prefill_length = Setter[int]("Maximum number of prompt tokens computed in a step.")
    kv_cache_mode = Setter[AsCacheMode | str]("How keys and values are stored.")
    kv_cache_span_size = Setter[int]("Number of tokens in a KV block.")
    prefill_cache = Flag("Reuse keys and values of equal prefixes.")
    prefix_cache_ttl = Setter[Seconds]("Seconds after which unused cached blocks are dropped.")
    lora_max_rank = Setter[int]("Maximum rank of an adapter.")
    lora_max_num = Setter[int]("Maximum number of loaded adapters.")

    def model_dir(self, model_dir: str, file_name_prefix: str = "") -> Self:
        """Set model_path, and the base name of the files if a directory contains several models."""
        return self.update({"model_path": model_dir, "file_prefix": file_name_prefix or None})

    def model_file_path(self, model_file_name: str, weight_file_path: str) -> Self:
        """Set the folder and the base name of the two files that `serialize_to_path` writes.

        Raises:
            InvalidRequestError: the files differ in more than .asmodel and .asparam.
        """
        stem, weights = os.path.splitext(model_file_name)[0], os.path.splitext(weight_file_path)[0]
        if stem != weights:
            raise invalid("weight_file_path", weight_file_path, f"{stem}.asparam, beside {model_file_name}")
        folder, prefix = os.path.split(stem)
        return self.model_dir(folder or os.curdir, prefix)

    def compute_unit(
        self, target_device: TargetDevice | str, device_id_array: Sequence[int] = (), compute_thread_in_device: int = 0
    ) -> Self:
        """Set compute_unit, device_list and num_threads."""
        return self.update({
            "compute_unit": target_device,
            "device_list": device_id_array,
            "num_threads": compute_thread_in_device,
        })  # fmt: skip

    def set_compute_unit_from_str(self, compute_unit: str) -> Self:
        """Set compute_unit and device_list from a string such as "CUDA:0,1" or "CPU"."""
        kind, _, devices = compute_unit.partition(":")
        numbers = [number.strip() for number in devices.split(",") if number.strip()]
        if not all(number.isdecimal() for number in numbers):
            raise invalid("compute_unit", compute_unit, 'a kind of device and numbers, such as "CUDA:0,1"')
        return self.update({"compute_unit": kind.strip(), "device_list": [int(number) for number in numbers]})

    def from_dict(self, rfield: Mapping[str, Any]) -> Self:
        """Set the fields of a DashInfer config: its section runtime_config, or a whole one with that section.

        Raises:
            TypeError: a field is not known, or not supported; the error says what to do instead.
            InvalidRequestError: a value has the wrong type.
            ValueError: model_name, compute_unit, engine_max_length or engine_max_batch is missing.
        """
        fields = section(rfield, "runtime_config")
        for name in ("model_name", "compute_unit", "engine_max_length", "engine_max_batch"):
            if name not in fields:
                raise ValueError(f"the runtime config has no {name}; it has {', '.join(map(str, fields)) or 'nothing'}")
        return self.update_from_dict(fields)

    def update_from_dict(self, rfield: Mapping[str, Any]) -> Self:
        """Set the fields of a DashInfer config that are given, as `from_dict`; none is required."""
        return self.update(runtime_fields(section(rfield, "runtime_config")))

    def build(self) -> AsModelConfig:
        """Return the fields that are set, including the model's name and path: keywords for `install_model`."""
        return AsModelConfig({_KEYWORDS.get(field, field): value for field, value in super().build().items()})

    def converted(self, field: str, value: Any) -> Any:
        """Return a value in our form: the wire's names of enums."""
        if isinstance(value, AsCacheMode | TargetDevice):
            return value.value
        if field == "kv_cache_mode" and isinstance(value, str) and value in AsCacheMode.__members__:
            return AsCacheMode[value].value
        return value


_KEYWORDS = {"model_name": "name", "model_path": "path"}
"""Names of keywords of `install_model` that are not those of fields."""


def _keyword(name: str) -> str:
    """Return the keyword of `install_model` for an attribute."""
    field = AsModelRuntimeConfigBuilder.foreign.get(name, name)
    if field not in runtime_pb2.RuntimeConfig.DESCRIPTOR.fields_by_name:
        raise AttributeError(f"AsModelConfig has no field {name!r}")
    return _KEYWORDS.get(field, field)
