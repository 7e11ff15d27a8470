"""Builders of configs with the names of DashInfer.

    config = ASGenerationConfigBuilder().do_sample().max_length(512).temperature(0.7).top_k(50).build()
    handle, queue = client.start_request("smol", "Once upon a time", **config)

Invalid values and unknown names raise when they are set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Self

from google.protobuf.message import Message
from headrace_proto.v1 import generation_pb2, runtime_pb2

from headrace._values.builders import ConfigBuilder, Flag, Setter
from headrace._values.fill import invalid
from headrace._values.generation_setters import GenerationSetters
from headrace.fields import Seconds
from headrace.huggingface import GenerationConfig, fields_of

_OWN_VOCABULARY = "the engine knows its model's vocabulary, leave it out"
_OWN_ID = "pass it to start_request as request_id"


class ASGenerationConfigBuilder(GenerationSetters):
    """Builds a generation config field by field or from a dict; `build()` returns keywords for `start_request`.

    All methods but `build` return the builder. Fields, ranges and defaults are those of
    `headrace.fields.GenerationFields`; a field that is not set has the model's default. DashInfer's forms are accepted:
    a single id as `eos_token_id`, `num_return_sequences` for `n`, and {"type": "json_object", "json_schema": …} as
    `response_format`.

    Args:
        hf_gen_config: a Hugging Face GenerationConfig, or the contents of a generation_config.json, to start from.
        seed: seed of the sampling; None: a random one, which the engine reports.
        eos_token_id: ids that end the request if hf_gen_config has none; None: those of the model.

    Raises:
        TypeError: `update` got an unknown name; a similar one is named.
        InvalidRequestError: a value has the wrong type; raised by the method that sets it.
    """

    message: ClassVar[type[Message]] = generation_pb2.GenerationConfig
    foreign: ClassVar[Mapping[str, str]] = {"num_return_sequences": "n"}
    refused: ClassVar[Mapping[str, str]] = {
        "vocab": _OWN_VOCABULARY, "vocab_type": _OWN_VOCABULARY, "uuid": _OWN_ID, "user_request_id": _OWN_ID,
    }  # fmt: skip

    num_return_sequences = Setter[int]("Number of sequences to return.")

    def __init__(
        self,
        hf_gen_config: GenerationConfig | Mapping[str, Any] | None = None,
        seed: int | None = None,
        eos_token_id: int | Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.update({"eos_token_id": eos_token_id})
        if hf_gen_config is not None:
            self.update(fields_of(hf_gen_config))
        if seed is not None:
            self.update({"seed": seed})

    def log_probs(self, enable_logprobs: bool, top_logprobs: int | None = None) -> Self:
        """Set logprobs and top_logprobs."""
        return self.update({"logprobs": enable_logprobs, "top_logprobs": top_logprobs})

    def with_mm_info(self, info: Sequence[Mapping[str, Any]]) -> Self:
        """Set mm_info."""
        return self.update({"mm_info": info})

    def converted(self, field: str, value: Any) -> Any:
        """Return a value in our form, from DashInfer's."""
        if field == "eos_token_id" and isinstance(value, int) and not isinstance(value, bool):
            return [value]
        if field == "response_format" and isinstance(value, Mapping):
            return _response_format(value)
        return value


def _response_format(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a response format in our form; DashInfer writes "json_object" with a schema for "json_schema"."""
    schema = value.get("json_schema")
    if value.get("type") != "json_object" or "json_schema" not in value:
        return value
    rest = {key: item for key, item in value.items() if key != "json_schema"}
    return {**rest, "type": "json_schema", "json_schema": schema} if schema else rest


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


class AsModelRuntimeConfigBuilder(ConfigBuilder):
    """Builds the config of an install; `build()` returns keywords for `install_model`.

    All methods but `build` return the builder. Fields, ranges and defaults are those of
    `headrace.fields.InstallFields`; DashInfer's names are accepted too.
    """

    message: ClassVar[type[Message]] = runtime_pb2.RuntimeConfig
    foreign: ClassVar[Mapping[str, str]] = {
        "name": "model_name", "path": "model_path", "engine_max_length": "max_length", "engine_max_batch": "max_batch",
        "engine_max_prefill_length": "max_prefill_tokens", "max_prefill_length": "max_prefill_tokens",
        "cache_mode": "kv_cache_mode", "kv_cache_span_size": "block_size", "cache_span_size": "block_size",
        "prefill_cache": "enable_prefix_cache", "thread_num": "num_threads", "user_set_data_type": "dtype",
    }  # fmt: skip

    model_name = Setter[str]("Name for all later calls; unique in one engine.")
    model_path = Setter[str]("Directory, file or hub name, on the engine's host.")
    num_threads = Setter[int]("Number of compute threads on a CPU; 0: the available physical CPU cores.")
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

    def build(self) -> dict[str, Any]:
        """Return the fields that are set, including the model's name and path: keywords for `install_model`."""
        fields = super().build()
        names = {"model_name": "name", "model_path": "path"}
        return {names.get(field, field): value for field, value in fields.items()}

    def converted(self, field: str, value: Any) -> Any:
        """Return a value in our form: the wire's names of enums."""
        if isinstance(value, AsCacheMode | TargetDevice):
            return value.value
        if field == "kv_cache_mode" and isinstance(value, str) and value in AsCacheMode.__members__:
            return AsCacheMode[value].value
        return value
