"""Generation configs with the names of DashInfer.

    config = ASGenerationConfigBuilder().do_sample().max_length(512).temperature(0.7).top_k(50).build()
    handle, queue = client.start_request("smol", "Once upon a time", **config)

Invalid values and unknown names raise when they are set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from google.protobuf.message import Message
from headrace_proto.v1 import generation_pb2

from headrace._base.refused_names import RefusedNames
from headrace._values.builders import Setter
from headrace._values.generation_setters import GenerationSetters
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


class MultiMediaInfo(RefusedNames, list[Mapping[str, Any]]):
    """Media of a prompt, as `mm_info` takes them: one item for each run of placeholder ids, in their order.

    An engine that takes no media refuses `mm_info` by name.
    """

    refused: ClassVar[Mapping[str, str]] = {
        "add_multimedia_content": "add(content, mime_type) takes the medium itself, which the engine encodes",
        "set_multimedia_type": "add(content, mime_type) takes the type of each medium",
    }

    def add(self, content: bytes, mime_type: str, placeholder_id: int | None = None) -> Self:
        """Append an image or another medium in its file format, such as "image/png"."""
        item = {"data": content, "mime_type": mime_type, "placeholder_id": placeholder_id}
        self.append({name: value for name, value in item.items() if value is not None})
        return self
