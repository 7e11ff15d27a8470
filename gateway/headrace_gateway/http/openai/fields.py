"""Fields that chats and completions share, as requests have them and as the generation config does."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from headrace_gateway.http.failures import invalid
from headrace_gateway.http.openai.formats import Formatted

HARMLESS: dict[str, Any] = {
    "user": None,
    "metadata": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
    "prompt_cache_retention": None,
    "store": (False,),
    "service_tier": ("auto", "default"),
}
"""Values of fields that change nothing here, and so may be sent; None: any value."""

NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop_words": "stop",
    "include_stop": "include_stop_str_in_output",
    "template_variables": "chat_template_kwargs",
    "tool_format": "tool_parser",
    "model_name": "model",
    "text": "prompt",
    "ids": "prompt",
    "token_ids": "prompt",
    "messages[].tool_calls[].name": "messages[].tool_calls[].function.name",
    "messages[].tool_calls[].arguments_json": "messages[].tool_calls[].function.arguments",
}
"""What the API calls fields of the wire contract, where it has another name."""

MAX_BIASES = 100_000
"""Entries of `logit_bias`: more than an engine takes in a config."""

_SAME = (
    "temperature",
    "top_p",
    "n",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "top_k",
    "min_p",
    "repetition_penalty",
    "ignore_eos",
    "stop_token_ids",
    "skip_special_tokens",
    "bad_words",
    "priority",
    "cache_salt",
    "logits_processors",
    "lora_name",
    "length_penalty",
    "num_beams",
)
"""Fields of the generation config that have their names in both."""


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How to stream.

    Attributes:
        include_usage: send the usage in a last chunk.
        include_obfuscation: has no effect: chunks are never padded.
    """

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class CacheOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How prompts are cached. It has no effect: all prefixes are, as long as there is room.

    Attributes:
        prewarm: only false is supported.
        comparison_response_id: is not supported.
    """

    mode: Literal["implicit", "explicit"] | None = None
    ttl: str | None = None
    prewarm: Literal[False] | None = None
    comparison_response_id: None = None


class LogitsProcessor(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A logits processor of the engine's operator."""

    name: str
    arguments: list[float] = []


class Sampling(Formatted, forbid_unknown_fields=True, kw_only=True):
    """Fields of both. Those from `top_k` on are Headrace's own, with the names that other servers use."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], msgspec.Meta(max_length=MAX_BIASES)] | None = None
    max_tokens: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    bad_words: list[str] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    logits_processors: list[LogitsProcessor] | None = None
    lora_name: str | None = None
    use_beam_search: bool | None = None
    num_beams: int | None = None
    length_penalty: float | None = None

    @property
    def width(self) -> int:
        """Beams of a search where `num_beams` does not say it, as of vLLM's `use_beam_search`."""
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        """True if a stream ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def config(self) -> dict[str, Any]:
        """Return the generation config.

        Raises:
            Failure: fields do not fit each other.
        """
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "is set without stream")
        found = {name: getattr(self, name) for name in _SAME} | self._search()
        found["logits_processors"] = msgspec.to_builtins(self.logits_processors)
        return found | {
            "stop_words": [self.stop] if isinstance(self.stop, str) else self.stop,
            "max_new_tokens": self.max_tokens,
            "min_new_tokens": self.min_tokens,
            "include_stop": self.include_stop_str_in_output,
            "logit_bias": None if self.logit_bias is None else _by_id(self.logit_bias),
            "response_format": self.format_config(),
        }

    def names(self) -> dict[str, str]:
        """Return what this request calls fields of the wire contract. Raises Failure as `config`."""
        return NAMES | {"response_format": self.format_path()}

    def _search(self) -> dict[str, Any]:
        """Return what `use_beam_search` sets. A search with one beam takes the most likely token, as vLLM's does."""
        if not self.use_beam_search:
            if self.use_beam_search is False and (self.num_beams or 1) > 1:
                raise invalid("use_beam_search", f"= false contradicts num_beams = {self.num_beams}")
            return {}
        return {"num_beams": self.num_beams or self.width, "do_sample": False}


class PromptDetails(msgspec.Struct):
    """Of the prompt's tokens."""

    cached_tokens: int


class Usage(msgspec.Struct):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails

    @classmethod
    def of(cls, prompt: int, completion: int, cached: int) -> Usage:
        """Return the usage of a request."""
        return cls(prompt, completion, prompt + completion, PromptDetails(cached))


def _by_id(bias: dict[str, float]) -> dict[int, float]:
    found = {}
    for text, value in bias.items():
        if not text.isascii() or not text.isdigit() or len(text) > 9:
            raise invalid(f'logit_bias["{text[:32]}"]', "is no token id")
        found[int(text)] = value
    return found
