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
from headrace.fields import Lease, LogitsProcessor, Seconds, TokenIdLists
from headrace.huggingface import GenerationConfig, fields_of

_OWN_VOCABULARY = "the engine knows its model's vocabulary, leave it out"
_OWN_ID = "pass it to start_request as request_id"


class ASGenerationConfigBuilder(ConfigBuilder):
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

    do_sample = Flag("Draw tokens; False takes the most likely.")
    early_stopping = Flag("EOS ends the request.")
    ignore_eos = Flag("EOS does not end the request.")
    include_stop = Flag("Keep the text of the stop that matched.")
    logprobs = Flag("Return the log-probability of every token.")
    suppress_repetition_in_generation = Flag("Use presence_penalty, and leave repetition_penalty out.")
    enable_tensors_from_model_inference = Flag("Return input embedding and last hidden state of every token.")
    skip_special_tokens = Flag("Leave special tokens out of the text.")
    use_prefix_cache = Flag("Read and fill the prefix cache.")

    temperature = Setter[float]("Divides the logits; 0 takes the most likely token.")
    top_k = Setter[int]("Keep the k most likely tokens; 0 keeps all.")
    top_p = Setter[float]("Keep the smallest set whose probability reaches this.")
    min_p = Setter[float]("Keep tokens at least this share as likely as the most likely.")
    seed = Setter[int]("The same seed gives the same draws.")
    max_length = Setter[int]("Most tokens, prompt and generated.")
    max_new_tokens = Setter[int]("Most tokens generated.")
    min_length = Setter[int]("Fewest tokens, prompt and generated, before EOS or a stop.")
    min_new_tokens = Setter[int]("Fewest tokens generated before EOS or a stop.")
    eos_token_id = Setter[int | Sequence[int]]("The id, or ids, that end the request.")
    stop_words_ids = Setter[TokenIdLists]("Sequences of ids that end the request.")
    stop_token_ids = Setter[Sequence[int]]("Single ids that end the request.")
    stop_words = Setter[Sequence[str]]("Strings that end the request.")
    bad_words_ids = Setter[TokenIdLists]("Sequences of ids never generated.")
    bad_words = Setter[Sequence[str]]("Strings never generated.")
    no_repeat_ngram_size = Setter[int]("No sequence of so many ids occurs twice; 0 is off.")
    repetition_penalty = Setter[float]("Penalty of ids in prompt and generated; 1 is off.")
    presence_penalty = Setter[float]("Taken from the logit of every id already generated.")
    frequency_penalty = Setter[float]("Taken from the logit once for each time the id was generated.")
    length_penalty = Setter[float]("Exponent of the length in ranking candidates and beams.")
    n = Setter[int]("Sequences to return.")
    num_return_sequences = Setter[int]("Sequences to return.")
    best_of = Setter[int]("Candidates of which the best n are returned.")
    num_beams = Setter[int]("Beams of a beam search; 1 is none.")
    logit_bias = Setter[Mapping[int, float]]("Added to the logits, by id.")
    allowed_token_ids = Setter[Sequence[int]]("Only these ids may be generated.")
    logits_processors = Setter[Sequence[LogitsProcessor]]("Logits processors of the engine's operator, in their order.")
    top_logprobs = Setter[int]("Alternatives to return for every token; needs logprobs.")
    prompt_logprobs = Setter[int]("Alternatives to return for every prompt token.")
    response_format = Setter[Mapping[str, Any]]("Guided decoding: what the output must match.")
    lora_name = Setter[str]("Adapter to apply.")
    mm_info = Setter[Sequence[Mapping[str, Any]]]("Embeddings or images for placeholder ids.")
    cache_salt = Setter[str]("Share cached prefixes only with the same salt.")
    priority = Setter[int]("Higher is served first.")
    deadline = Setter[Seconds]("Seconds from arrival after which the request ends.")
    interrupt_policy = Setter[str]('When memory runs out: "RESUME" or "RETURN".')
    lease = Setter[Lease]("How long the request is kept while nobody asks for it.")

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
