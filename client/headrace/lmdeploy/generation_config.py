"""A GenerationConfig with the names and defaults of LMDeploy.

    config = GenerationConfig(top_p=0.8, top_k=40, temperature=0.8, max_new_tokens=1024)
    for text in client.generate("smol", "Once upon a time", **config.build()):
        print(text, end="")

It accepts all other fields of Headrace too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypedDict, Unpack

from google.protobuf.message import Message
from headrace_proto.v1 import generation_pb2

from headrace._values.refusals import invalid
from headrace.compat.keyword_config import KeywordConfig


class GenerationFields(TypedDict, total=False):
    """The fields of LMDeploy's GenerationConfig.

    Attributes:
        n: number of sequences to return. Default 1.
        max_new_tokens: maximum number of generated tokens. Default 512.
        do_sample: sample tokens. Default: True unless top_k is 1.
        top_p: keep the smallest set of tokens whose probability reaches this value. Default 1.0.
        top_k: keep the k most likely tokens. Default 1: always the most likely one.
        min_p: keep tokens whose probability is at least this fraction of the most likely one's.
        temperature: divisor of the logits. Default 0.8.
        repetition_penalty: penalty of ids in the prompt and the generated tokens. Default 1.0: off.
        ignore_eos: do not end the request at EOS. Default False.
        random_seed: seed of the sampling. Default: random, and reported.
        stop_words: strings that end the request.
        stop_token_ids: ids that end the request.
        bad_words: strings that are never generated.
        bad_token_ids: ids that are never generated.
        min_new_tokens: minimum number of generated tokens before EOS or a stop.
        skip_special_tokens: leave special tokens out of the text. Default True.
        include_stop_str_in_output: keep the text of the stop word.
        logprobs: return logprobs of every token with this number of alternatives.
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


_DEFAULTS: Mapping[str, Any] = {
    "n": 1, "max_new_tokens": 512, "top_p": 1.0, "top_k": 1, "temperature": 0.8, "repetition_penalty": 1.0,
    "ignore_eos": False, "skip_special_tokens": True,
}  # fmt: skip

_WRAPPER = ("name", "schema", "description", "strict")
"""Keys of the object that contains the schema in LMDeploy."""


class GenerationConfig(KeywordConfig):
    """A generation config with LMDeploy's names; `build()` returns keywords for `start_request` and `generate`.

    A field that is not given has LMDeploy's default; one that is None has the model's default. Fields are attributes
    too: `config.top_k = 40`.

    Args:
        **fields: fields of `GenerationFields` above, or any other field of `headrace.fields.GenerationFields`.

    Raises:
        TypeError: there is no such field; a similar one is named.
        InvalidRequestError: a value has the wrong type.
    """

    message: ClassVar[type[Message]] = generation_pb2.GenerationConfig
    foreign: ClassVar[Mapping[str, str]] = {
        "random_seed": "seed", "bad_token_ids": "bad_words_ids", "include_stop_str_in_output": "include_stop",
    }  # fmt: skip

    defaults: ClassVar[Mapping[str, Any]] = _DEFAULTS

    def __init__(self, **fields: Unpack[GenerationFields]) -> None:
        super().__init__(**fields)

    def translated(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields with LMDeploy's `logprobs` and `bad_token_ids` in our form."""
        changed = dict(fields)
        top = changed.get("logprobs")
        if top is not None and not isinstance(top, bool):
            changed |= {"logprobs": True, "top_logprobs": top}
        if "bad_token_ids" in changed:
            changed["bad_token_ids"] = _single(changed["bad_token_ids"])
        return changed

    def converted(self, field: str, value: Any) -> Any:
        """Return a value in our form, from LMDeploy's."""
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
