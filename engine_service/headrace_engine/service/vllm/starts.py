"""Conversion of vLLM's requests. What this engine does not honour is refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace_proto.pure.grammar_notation import is_ebnf

from headrace_engine.errors import InvalidArgument
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from headrace_engine.request_types import StartRequest
from headrace_engine.service.convert.callers import caller
from headrace_engine.service.convert.sizes import few

_UNSUPPORTED = ("kv_transfer_params", "mm_inputs", "kv_transfer_params_json", "media_refs")
_ALL_TOKENS = 2**31
"""From here on top_k says that all tokens may be sampled: other languages send -1."""

_TEXTS = {
    "json_schema": ResponseFormatKind.JSON_SCHEMA,
    "regex": ResponseFormatKind.REGEX,
    "grammar": ResponseFormatKind.GRAMMAR,
    "structural_tag": ResponseFormatKind.STRUCTURAL_TAG,
}


def check_request(request: Any) -> None:
    """Refuse what vLLM's service has and this engine has not.

    Raises:
        InvalidArgument: naming the field.
    """
    for name in _UNSUPPORTED:
        if request.HasField(name):
            raise InvalidArgument.unsupported(name, "is not supported here")
    if request.extra_mm_inputs:
        raise InvalidArgument.unsupported("extra_mm_inputs", "is not supported here")
    if request.HasField("data_parallel_rank") and request.data_parallel_rank > 0:
        raise InvalidArgument.field("data_parallel_rank", f"= {request.data_parallel_rank}; allowed: 0, the only rank")
    if request.sampling_params.HasField("truncate_prompt_tokens"):
        raise InvalidArgument.unsupported("sampling_params.truncate_prompt_tokens", "is not supported here")


def start_of(model_name: str, ids: Sequence[int], params: Any) -> StartRequest:
    """Return the request of a Generate.

    Args:
        ids: the prompt.
        params: its SamplingParams. Numbers without presence are unset where they are 0.

    Raises:
        InvalidArgument: naming the field.
    """
    return StartRequest(model_name=model_name, prompt=few(ids), config=_config(params), caller=caller())


def _config(params: Any) -> GenerationConfig:
    logprobs = params.logprobs if params.HasField("logprobs") else None
    _refuse_all("logprobs", logprobs)
    prompt_logprobs = params.prompt_logprobs if params.HasField("prompt_logprobs") else None
    _refuse_all("prompt_logprobs", prompt_logprobs)
    return GenerationConfig(
        temperature=params.temperature if params.HasField("temperature") else None,
        top_p=params.top_p or None,
        top_k=params.top_k if 0 < params.top_k < _ALL_TOKENS else None,
        min_p=params.min_p or None,
        frequency_penalty=params.frequency_penalty or None,
        presence_penalty=params.presence_penalty or None,
        repetition_penalty=params.repetition_penalty or None,
        max_new_tokens=params.max_tokens if params.HasField("max_tokens") else None,
        min_new_tokens=params.min_tokens or None,
        stop_words=tuple(params.stop),
        stop_token_ids=tuple(params.stop_token_ids),
        ignore_eos=params.ignore_eos or None,
        n=params.n or None,
        seed=params.seed % 2**64 if params.HasField("seed") else None,
        include_stop=params.include_stop_str_in_output or None,
        logit_bias=dict(params.logit_bias),
        logprobs=None if logprobs is None else True,
        top_logprobs=logprobs or None,
        prompt_logprobs=prompt_logprobs,
        response_format=_format(params),
        skip_special_tokens=params.skip_special_tokens,
    )


def _refuse_all(name: str, value: int | None) -> None:
    if value is not None and value < 0:
        field = f"sampling_params.{name}"
        raise InvalidArgument.field(field, f"= {value} asks for those of all tokens; allowed: 0 to 20")


def _format(params: Any) -> ResponseFormat | None:
    kind = params.WhichOneof("constraint")
    if kind is None or (kind == "json_object" and not params.json_object):
        return None
    if kind == "json_object":
        return ResponseFormat(ResponseFormatKind.JSON_OBJECT)
    if kind == "choice":
        return ResponseFormat(ResponseFormatKind.CHOICE, choices=tuple(params.choice.choices))
    text = getattr(params, kind)
    return ResponseFormat(_TEXTS[kind], text, ebnf=kind == "grammar" and is_ebnf(text))
