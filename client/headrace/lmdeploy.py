"""LMDeploy's GenerationConfig, with the names and defaults that it documents.

    config = GenerationConfig(top_p=0.8, top_k=40, temperature=0.8, max_new_tokens=1024)
    for text in client.generate("smol", "Once upon a time", **config.build()):
        print(text, end="")

Fields that only Headrace has are taken beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypedDict, Unpack

from google.protobuf.message import Message
from headrace_proto.v1 import generation_pb2

from headrace._values.builders import ConfigBuilder
from headrace._values.fill import invalid


class GenerationFields(TypedDict, total=False):
    """The fields of LMDeploy's GenerationConfig.

    Attributes:
        n: sequences to return. Default 1.
        max_new_tokens: most tokens generated. Default 512.
        do_sample: draw tokens. Default: drawn where top_k is not 1.
        top_p: keep the smallest set whose probability reaches this. Default 1.0.
        top_k: keep the k most likely. Default 1: the most likely is taken.
        min_p: keep tokens at least this share as likely as the most likely.
        temperature: divides the logits. Default 0.8.
        repetition_penalty: 1.0, the default, is off.
        ignore_eos: EOS does not end the request. Default False.
        random_seed: seed of the draws. Default: drawn and reported.
        stop_words: strings that end the request.
        stop_token_ids: ids that end it.
        bad_words: strings never generated.
        bad_token_ids: ids never generated.
        min_new_tokens: fewest tokens generated before EOS or a stop.
        skip_special_tokens: leave special tokens out of the text. Default True.
        include_stop_str_in_output: keep the text of the stop.
        logprobs: log-probabilities of every token with so many alternatives.
        response_format: {"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": …, "schema": {…}}} or
            {"type": "regex_schema", "regex_schema": …}.
    """

    n: int | None
    max_new_tokens: int | None
    do_sample: bool | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    temperature: float | None
    repetition_penalty: float | None
    ignore_eos: bool | None
    random_seed: int | None
    stop_words: Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    bad_words: Sequence[str] | None
    bad_token_ids: Sequence[int] | None
    min_new_tokens: int | None
    skip_special_tokens: bool | None
    include_stop_str_in_output: bool | None
    logprobs: int | None
    response_format: Mapping[str, Any] | None


_DEFAULTS: GenerationFields = {
    "n": 1, "max_new_tokens": 512, "top_p": 1.0, "top_k": 1, "temperature": 0.8, "repetition_penalty": 1.0,
    "ignore_eos": False, "skip_special_tokens": True,
}  # fmt: skip

_WRAPPER = ("name", "schema", "description", "strict")
"""Keys of what LMDeploy wraps a schema in."""


class GenerationConfig(ConfigBuilder):
    """How to generate, as LMDeploy writes it; `build()` gives keywords for `start_request` and `generate`.

    What is left out has LMDeploy's default, and not the model's. None instead of a value: the model's own default.

    Args:
        **fields: those of `GenerationFields` above. Fields that only we have are taken too.

    Raises:
        TypeError: a name that is no field; the nearest one is named.
        InvalidRequestError: a value of the wrong kind.
    """

    message: ClassVar[type[Message]] = generation_pb2.GenerationConfig
    foreign: ClassVar[Mapping[str, str]] = {
        "random_seed": "seed", "bad_token_ids": "bad_words_ids", "include_stop_str_in_output": "include_stop",
    }  # fmt: skip

    def __init__(self, **fields: Unpack[GenerationFields]) -> None:
        super().__init__()
        self.update({**_DEFAULTS, **fields})

    def update(self, fields: Mapping[str, Any]) -> GenerationConfig:
        """Sets several fields; where one of them is wrong, none."""
        changed = dict(fields)
        top = changed.get("logprobs")
        if top is not None and not isinstance(top, bool):
            changed |= {"logprobs": True, "top_logprobs": top}
        if "bad_token_ids" in changed:
            changed["bad_token_ids"] = _single(changed["bad_token_ids"])
        return super().update(changed)

    def converted(self, field: str, value: Any) -> Any:
        """A value as it is written here, from how LMDeploy writes it."""
        if field != "response_format" or not isinstance(value, Mapping):
            return value
        return _response_format(value)


def _response_format(value: Mapping[str, Any]) -> Mapping[str, Any]:
    kind, schema = value.get("type"), value.get("json_schema")
    if kind == "regex_schema":
        rest = {key: item for key, item in value.items() if key != "regex_schema"}
        return {**rest, "type": "regex", "regex": value.get("regex_schema")}
    if kind == "json_schema" and isinstance(schema, Mapping) and "schema" in schema:
        other = next((key for key in schema if key not in _WRAPPER), None)
        if other is not None:
            raise invalid("response_format.json_schema", other, f"one of {', '.join(_WRAPPER)}")
        return {**value, "json_schema": schema["schema"]}
    return value


def _single(ids: Any) -> Any:
    if ids is None:
        return None
    if isinstance(ids, str | bytes | Mapping) or not isinstance(ids, Sequence):
        raise invalid("bad_token_ids", ids, "a list")
    return [[token] for token in ids]
