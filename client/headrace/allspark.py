"""Configs under the names that DashInfer has for them.

    config = ASGenerationConfigBuilder().do_sample().max_length(512).temperature(0.7).top_k(50).build()
    handle, queue = client.start_request("smol", "Once upon a time", **config)

Values that cannot be sent, and names that are none, are refused where they are set.
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
    """Builds a generation config, field by field or from a dict; `build()` gives keywords for `start_request`.

    Every method but `build` returns the builder. Fields, ranges and defaults are those of
    `headrace.fields.GenerationFields`; what is not set is the model's own default. DashInfer's spellings are taken:
    one id as `eos_token_id`, `num_return_sequences` for `n`, and {"type": "json_object", "json_schema": …} as
    `response_format`.

    Args:
        hf_gen_config: a Hugging Face GenerationConfig (or the contents of a generation_config.json) to begin with.
        seed: seed of the draws; None: the engine draws one and reports it.
        eos_token_id: ids that end the request, where hf_gen_config names none; None: the model's.

    Raises:
        TypeError: `update` was given a name that is no field; the nearest one is named.
        InvalidRequestError: a value of the wrong kind, told by the method that was given it.
    """

    message: ClassVar[type[Message]] = generation_pb2.GenerationConfig
    foreign: ClassVar[Mapping[str, str]] = {"num_return_sequences": "n"}
    refused: ClassVar[Mapping[str, str]] = {
        "vocab": _OWN_VOCABULARY, "vocab_type": _OWN_VOCABULARY, "uuid": _OWN_ID, "user_request_id": _OWN_ID,
    }  # fmt: skip

    num_return_sequences = Setter[int]("Sequences to return.")

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
        """Sets logprobs and top_logprobs."""
        return self.update({"logprobs": enable_logprobs, "top_logprobs": top_logprobs})

    def with_mm_info(self, info: Sequence[Mapping[str, Any]]) -> Self:
        """Sets mm_info."""
        return self.update({"mm_info": info})

    def converted(self, field: str, value: Any) -> Any:
        """A value as it is written here, from how DashInfer writes it."""
        if field == "eos_token_id" and isinstance(value, int) and not isinstance(value, bool):
            return [value]
        if field == "response_format" and isinstance(value, Mapping):
            return _response_format(value)
        return value


def _response_format(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """A JSON object that is to satisfy a schema is written as a json_object there."""
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
    """Kind of device that computes."""

    CUDA = "CUDA"
    CPU = "CPU"
    CPU_NUMA = "CPU_NUMA"


class AsModelRuntimeConfigBuilder(ConfigBuilder):
    """Builds the config of an install; `build()` gives keywords for `install_model`.

    Every method but `build` returns the builder. Fields, ranges and defaults are those of
    `headrace.fields.InstallFields`, and what DashInfer calls otherwise goes by its name there too.
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
    num_threads = Setter[int]("Compute threads on a CPU; 0: the physical cores one may use.")
    max_batch = Setter[int]("Sequences in one step.")
    max_length = Setter[int]("Tokens of the longest sequence, prompt and generated.")
    max_prefill_length = Setter[int]("Tokens computed in one step.")
    kv_cache_mode = Setter[AsCacheMode | str]("How keys and values are stored.")
    kv_cache_span_size = Setter[int]("Tokens in a KV block.")
    prefill_cache = Flag("Reuse keys and values of equal prefixes.")
    prefix_cache_ttl = Setter[Seconds]("Seconds after which unused cached blocks are dropped.")
    lora_max_rank = Setter[int]("Largest rank of an adapter.")
    lora_max_num = Setter[int]("Adapters that may be loaded at once.")

    def model_dir(self, model_dir: str, file_name_prefix: str = "") -> Self:
        """Sets model_path, and the base name of the files where one directory holds several models."""
        return self.update({"model_path": model_dir, "file_prefix": file_name_prefix or None})

    def compute_unit(
        self, target_device: TargetDevice | str, device_id_array: Sequence[int] = (), compute_thread_in_device: int = 0
    ) -> Self:
        """Sets compute_unit, device_list and num_threads."""
        return self.update({
            "compute_unit": target_device,
            "device_list": device_id_array,
            "num_threads": compute_thread_in_device,
        })  # fmt: skip

    def set_compute_unit_from_str(self, compute_unit: str) -> Self:
        """Sets compute_unit and device_list from a text such as "CUDA:0,1" or "CPU"."""
        kind, _, devices = compute_unit.partition(":")
        numbers = [number.strip() for number in devices.split(",") if number.strip()]
        if not all(number.isdecimal() for number in numbers):
            raise invalid("compute_unit", compute_unit, 'a kind of device and numbers, such as "CUDA:0,1"')
        return self.update({"compute_unit": kind.strip(), "device_list": [int(number) for number in numbers]})

    def build(self) -> dict[str, Any]:
        """The fields that were set: keywords for `install_model`, with the model's name and path."""
        fields = super().build()
        names = {"model_name": "name", "model_path": "path"}
        return {names.get(field, field): value for field, value in fields.items()}

    def converted(self, field: str, value: Any) -> Any:
        """A value as it is written here: enums by the names that they have on the wire."""
        if isinstance(value, AsCacheMode | TargetDevice):
            return value.value
        if field == "kv_cache_mode" and isinstance(value, str) and value in AsCacheMode.__members__:
            return AsCacheMode[value].value
        return value
