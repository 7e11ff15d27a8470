"""What is counted is the same wherever it is told; what is sent is what holds; what is refused takes nothing along."""

from __future__ import annotations

from typing import Any

import pytest
from headrace import Client, InvalidRequestError
from headrace.types import FinishReason
from support.contract.places import MAX_LENGTH, MODEL

GREEDY = {"do_sample": False}
EMOJI = "👍🏽你好"

ECHOES: list[dict[str, Any]] = [
    {"do_sample": False},
    {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.75,
        "min_p": 0.25,
        "seed": 2**64 - 1,
        "max_length": 40,
        "max_new_tokens": 9,
        "n": 2,
        "stop_words": ["~stop"],
        "logprobs": True,
        "top_logprobs": 3,
        "min_length": 5,
        "min_new_tokens": 4,
        "eos_token_id": [7, 9],
        "stop_words_ids": [[1, 2], [3]],
        "stop_token_ids": [11],
        "include_stop": True,
        "bad_words_ids": [[5], [6, 7]],
        "bad_words": ["worse"],
        "no_repeat_ngram_size": 4,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.25,
        "suppress_repetition_in_generation": True,
        "logit_bias": {3: 1.5, 8: -2.0},
        "allowed_token_ids": list(range(3, 200)),
        "skip_special_tokens": False,
        "use_prefix_cache": False,
        "use_speculation": False,
        "cache_salt": "salt",
        "priority": 3,
        "deadline": 100.0,
        "interrupt_policy": "RETURN",
        "prompt_logprobs": 2,
        "enable_tensors_from_model_inference": True,
    },
    {"early_stopping": False, "ignore_eos": True},
    {"repetition_penalty": 1.25},
    {"best_of": 3, "length_penalty": 0.5},
    {"num_beams": 2, "beam_stopping": "FIRST", "do_sample": False},
    {"response_format": {"type": "regex", "regex": "a+"}},
    {"logits_processors": [{"name": "add", "arguments": [17.0, 2.5]}]},
    {"lease": {"running": 20.0, "ended": 30.0}},
]
"""Every field of a request that an engine honours, with another value than its default."""


@pytest.mark.parametrize(
    "config",
    [
        {**GREEDY, "max_new_tokens": 30, "ignore_eos": True},
        {"seed": 5, "temperature": 2.0, "eos_token_id": list(range(3, 384, 4)), "max_new_tokens": 100},
    ],
    ids=["by length", "by eos"],
)
def test_bc012_tokens_are_counted_alike_everywhere(client: Client, config: dict[str, Any]) -> None:
    """EOS counts as a token; elements count nothing, whatever number of tokens one brings."""
    handle, queue = client.start_request(MODEL, EMOJI, **config)
    ids = [token for element in queue for token in element.ids_from_generate]
    expected = FinishReason.EOS if "eos_token_id" in config else FinishReason.MAX_LENGTH
    assert queue.finish_reason is expected
    stat = queue.RequestStatInfo()
    view = client.get_request(handle)
    again = client.open_queue(handle).Get()
    assert again is not None
    assert again.ids_from_generate == ids
    assert len(ids) == queue.GeneratedLength() == stat["generated_token_length"] == view.sequences[0].generated_length
    prompt = len(client.tokenize(MODEL, EMOJI).ids)
    assert stat["context_token_length"] == prompt == queue.request.prompt_token_count
    if expected is FinishReason.EOS:
        assert ids[-1] in config["eos_token_id"]
    client.release_request(handle)


@pytest.mark.parametrize("sent", ECHOES, ids=lambda sent: next(iter(sent)))
def test_bc027_every_field_that_is_sent_is_what_holds(client: Client, sent: dict[str, Any]) -> None:
    handle, queue = client.start_request(MODEL, ids=[1, 2, 3], **sent)
    effective = queue.request.effective_config
    assert effective is not None
    for name, value in sent.items():
        assert _plain(effective[name]) == _plain(value), name
    client.release_request(handle)


def test_bc027_no_field_that_is_honoured_is_left_out_here() -> None:
    from headrace_engine.engine.config.fields import GENERATION

    honoured = {name for name, field in GENERATION.items() if field.honoured is None}
    assert honoured == {name for sent in ECHOES for name in sent} | {"lora_name"}  # In test_adapters.py, with a model.


def test_bc027_a_name_that_is_no_field_is_refused(client: Client) -> None:
    with pytest.raises((TypeError, ValueError), match="min_tokens"):
        client.start_request(MODEL, ids=[1], min_tokens=3)


def test_bc030_a_prompt_that_is_too_long_takes_nothing_along(client: Client) -> None:
    for _ in range(3):
        with pytest.raises(InvalidRequestError):
            client.start_request(MODEL, ids=[1] * (MAX_LENGTH + 1), **GREEDY)
    started = [client.start_request(MODEL, ids=[4, number], max_new_tokens=5, **GREEDY) for number in range(3)]
    for handle, queue in started:
        assert sum(len(element.ids_from_generate) for element in queue) > 0
        client.release_request(handle)
    assert client.list_requests(running_only=True) == []


def _plain(value: Any) -> Any:
    """Values that mean the same, in one form."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items() if key != "type"}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
