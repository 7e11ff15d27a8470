"""EasyDeL's SamplingParams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypedDict, Unpack

from google.protobuf.message import Message
from headrace_proto.v1 import generation_pb2

from headrace._values.refusals import invalid
from headrace.compat.keyword_config import KeywordConfig


class SamplingFields(TypedDict, total=False):
    """The fields of EasyDeL's SamplingParams.

    Attributes:
        max_tokens: maximum number of generated tokens. Default 16.
        min_tokens: minimum number of generated tokens before EOS or a stop.
        temperature: divisor of the logits; 0 = always the most likely token. Default 0.0.
        top_p: keep the smallest set of tokens whose probability reaches this value. Default 1.0: off.
        top_k: keep the k most likely tokens. Default 0: all.
        min_p: keep tokens whose probability is at least this fraction of the most likely one's. Default 0.0: off.
        presence_penalty: subtracted from the logit of every id already generated. Default 0.0.
        frequency_penalty: subtracted from the logit once for each time the id was generated. Default 0.0.
        repetition_penalty: penalty of ids in the prompt and the generated tokens. Default 1.0: off.
        suppress_tokens: ids that are never generated. Default: none.
        bad_words: strings that are never generated.
        stop: a string that ends the request, or several.
        stop_token_ids: ids that end the request.
        include_stop_str_in_output: keep the text of the stop.
        ignore_eos: do not end the request at EOS.
        skip_special_tokens: leave special tokens out of the text. Default True.
        seed: seed of the sampling. Default: that of the vSurge, else random.
    """

    max_tokens: int | None
    min_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    suppress_tokens: Sequence[int] | None
    bad_words: Sequence[str] | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    include_stop_str_in_output: bool | None
    ignore_eos: bool | None
    skip_special_tokens: bool | None
    seed: int | None


_NOT_HELD = "a ReturnSample does not hold them: use start_request of headrace.Client"


class SamplingParams(KeywordConfig):
    """How to generate, with the names and defaults of EasyDeL.

    A field that is not given has EasyDeL's default; one that is None has the model's default. Fields are attributes
    too: `params.top_k = 40`.

    Args:
        **fields: fields of `SamplingFields` above, or any other field of `headrace.fields.GenerationFields`.

    Raises:
        TypeError: there is no such field; a similar one is named.
        InvalidRequestError: a value has the wrong type, or no counterpart here.
    """

    message: ClassVar[type[Message]] = generation_pb2.GenerationConfig
    foreign: ClassVar[Mapping[str, str]] = {
        "max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "suppress_tokens": "bad_words_ids",
        "stop": "stop_words", "include_stop_str_in_output": "include_stop",
    }  # fmt: skip
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_tokens": 16, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0,
        "frequency_penalty": 0.0, "repetition_penalty": 1.0,
    }  # fmt: skip
    unmatched: ClassVar[Mapping[str, tuple[tuple[Any, ...], str]]] = {
        "n": ((1,), "repeat the prompt in the list"),
        "best_of": ((1,), "use start_request of headrace.Client"),
        "logprobs": ((False, 0), _NOT_HELD),
        "prompt_logprobs": ((0,), _NOT_HELD),
        "enable_tensors_from_model_inference": ((False,), _NOT_HELD),
        "detokenize": ((True,), "a ReturnSample has both text and token_ids"),
    }

    def __init__(self, **fields: Unpack[SamplingFields]) -> None:
        super().__init__(**fields)

    def translated(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields with `stop` and `suppress_tokens` in our form."""
        changed = dict(fields)
        if isinstance(changed.get("stop"), str):
            changed["stop"] = [changed["stop"]]
        ids = changed.get("suppress_tokens")
        if ids is not None:
            if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
                raise invalid("suppress_tokens", ids, "a list of ids")
            changed["suppress_tokens"] = [[token] for token in ids] or None
        return changed
