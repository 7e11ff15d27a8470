"""The arguments of a pipeline's call that say how to generate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from headrace._values.refusals import invalid, unknown_name
from headrace.compat.counterparts import not_supported, warn_caller
from headrace.lmdeploy.generation_config import GenerationConfig


class CallArguments(TypedDict, total=False):
    """Deprecated arguments of a call, for which GenerationConfig has fields; not beside a gen_config.

    Attributes:
        request_output_len: maximum number of generated tokens. Default 512.
        top_k: keep the k most likely tokens. Default 40.
        top_p: keep the smallest set of tokens whose probability reaches this value. Default 0.8.
        temperature: divisor of the logits. Default 0.8.
        repetition_penalty: penalty of ids in the prompt and the generated tokens. Default 1.0: off.
        ignore_eos: do not end the answer at EOS. Default False.
    """

    request_output_len: int
    top_k: int
    top_p: float
    temperature: float
    repetition_penalty: float
    ignore_eos: bool


_CALL_DEFAULTS: CallArguments = {
    "request_output_len": 512, "top_k": 40, "top_p": 0.8, "temperature": 0.8, "repetition_penalty": 1.0,
    "ignore_eos": False,
}  # fmt: skip
_LEFT_OUT = {
    "n": "repeat the prompt in the list",
    "prompt_logprobs": "use start_request of headrace.Client",
    "enable_tensors_from_model_inference": "use start_request of headrace.Client",
}
"""Generation fields whose results a Response does not hold."""


def configs_of(gen_config: Any, arguments: Mapping[str, Any], count: int) -> list[GenerationConfig]:
    """Return the config of each prompt.

    Raises:
        TypeError: there is no such argument, or there is a gen_config too.
        InvalidRequestError: gen_config is not one, or not one for each prompt.
    """
    for name in arguments:
        if name not in _CALL_DEFAULTS:
            raise unknown_name(f'a pipeline has no argument "{name}"', name, ["gen_config", *_CALL_DEFAULTS])
        if gen_config is not None:
            raise TypeError(f"{name} and gen_config: give it in gen_config alone")
        warn_caller(f"{name} is deprecated: give it in gen_config", DeprecationWarning)
    if gen_config is None:
        fields = {**_CALL_DEFAULTS, **arguments}
        gen_config = GenerationConfig(max_new_tokens=fields.pop("request_output_len"), **fields)
    configs = [gen_config] * count if isinstance(gen_config, GenerationConfig) else list(gen_config)
    if len(configs) != count:
        raise invalid("gen_config", gen_config, f"one, or one for each of {count} prompts")
    for config in configs:
        _check(config)
    return configs


def _check(config: Any) -> None:
    if not isinstance(config, GenerationConfig):
        raise invalid("gen_config", config, "a GenerationConfig")
    for name, advice in _LEFT_OUT.items():
        if getattr(config, name) not in (None, False, 1 if name == "n" else None):
            raise not_supported(name, getattr(config, name), advice)
