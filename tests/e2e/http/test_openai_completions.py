"""Completions by OpenAI's own client."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from headrace import Client
from support.clocks.waiting import wait_until
from support.servers.gate import Gate


def over_grpc(grpc: Client, prompt: Any, **config: Any) -> list[str]:
    """The texts that gRPC's client reads."""
    handle, queue = grpc.start_request("tiny", prompt, **config)
    texts = ["".join(elements.text for elements in choice) for choice in queue.choices]
    grpc.release_request(handle)
    return texts


def over_http(client: openai.OpenAI, asked: dict[str, Any], count: int, *, stream: bool) -> list[str]:
    """Return the texts of a completion with `count` choices, read whole or as a stream."""
    if not stream:
        return [choice.text for choice in client.completions.create(**asked).choices]
    texts = [""] * count
    with client.completions.create(**asked, stream=True) as chunks:
        for chunk in chunks:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
    return texts


@pytest.mark.parametrize("prompt", ["Why are you blue", [71, 72, 73], ["The river", "The lamp"], [[3, 4], [5]]])
@pytest.mark.parametrize("stream", [False, True])
def test_prompts_of_all_forms_give_the_texts_of_grpc(
    client: openai.OpenAI, grpc: Client, prompt: Any, stream: bool
) -> None:
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    expected = [
        text
        for one in (prompt if several else [prompt])
        for text in over_grpc(grpc, one, seed=5, max_new_tokens=20, n=2)
    ]
    config: Any = {"model": "tiny", "prompt": prompt, "seed": 5, "max_tokens": 20, "n": 2}
    texts = over_http(client, config, len(expected), stream=stream)
    assert texts == expected


def test_logprobs_have_texts_and_offsets(client: openai.OpenAI, grpc: Client) -> None:
    answer = client.completions.create(model="tiny", prompt="The river", seed=5, max_tokens=10, logprobs=2)
    handle, queue = grpc.start_request("tiny", "The river", seed=5, max_new_tokens=10, logprobs=True, top_logprobs=2)
    elements = list(queue)
    grpc.release_request(handle)
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.token_logprobs == pytest.approx([one for each in elements for one in each.token_logprobs_list])
    assert [sorted(top.values()) for top in found.top_logprobs or []] == [
        pytest.approx(sorted(chance for _, chance in top)) for each in elements for top in each.log_probs_list
    ]
    assert len(found.tokens or []) == len(found.text_offset or []) == 10


@pytest.mark.parametrize("prompt", ["The river", [71, 72, 73], ["The river", "The lamp"], [[3, 4], [5]]])
@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_is_the_prompt_before_the_text(client: openai.OpenAI, grpc: Client, prompt: Any, stream: bool) -> None:
    config: Any = {"model": "tiny", "prompt": prompt, "seed": 5, "max_tokens": 5, "n": 2}
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    prompts = [
        one if isinstance(one, str) else grpc.detokenize("tiny", one, skip_special_tokens=False).text
        for one in (prompt if several else [prompt])
    ]
    count = 2 * len(prompts)
    plain = over_http(client, config, count, stream=stream)
    echoed = over_http(client, {**config, "echo": True}, count, stream=stream)
    assert echoed == [prompts[index // 2] + text for index, text in enumerate(plain)]


@pytest.mark.parametrize("prompt", ["The river", [71, 72, 73], [9]])
@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_has_the_log_probabilities_of_its_prompt(
    client: openai.OpenAI, grpc: Client, prompt: Any, stream: bool
) -> None:
    handle, queue = grpc.start_request("tiny", prompt, seed=5, max_new_tokens=4, prompt_logprobs=2, ignore_eos=True)
    generated = sum(len(each.ids_from_generate) for each in queue)
    expected = grpc.get_request(handle, prompt_logprobs_from=0).prompt_logprobs
    grpc.release_request(handle)
    asked: Any = {"model": "tiny", "prompt": prompt, "seed": 5, "max_tokens": 4, "echo": True, "logprobs": 2}
    asked["extra_body"] = {"ignore_eos": True}
    if stream:
        with client.completions.create(**asked, stream=True) as chunks:
            choices = [chunk.choices[0] for chunk in chunks]
    else:
        choices = list(client.completions.create(**asked).choices)
    text = "".join(choice.text for choice in choices)
    parts = [choice.logprobs for choice in choices if choice.logprobs is not None]
    tokens, chances = ([one for part in parts for one in getattr(part, name)] for name in ("tokens", "token_logprobs"))
    offsets = [one for part in parts for one in part.text_offset or []]
    length = len(tokens) - generated
    assert length == len(grpc.tokenize("tiny", prompt).ids if isinstance(prompt, str) else prompt)
    assert chances[0] is None
    assert chances[1:length] == pytest.approx([] if expected is None else expected.token_logprobs_list)
    assert all(text[offset:].startswith(token) for token, offset in zip(tokens[:length], offsets, strict=False))
    assert offsets == sorted(offsets)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": [[3] * 400] * 32, "logprobs": 20, "n": 2}, "gives 537600 log-probabilities"),
    ],
)
def test_an_echo_has_a_limit(client: openai.OpenAI, grpc: Client, fields: Any, words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        client.completions.create(model="tiny", max_tokens=1, echo=True, **fields)
    wait_until(lambda: not grpc.list_requests(), "what began is not released")


def test_the_best_of_several_is_that_of_grpc(client: openai.OpenAI, grpc: Client) -> None:
    answer = client.completions.create(model="tiny", prompt="The river", seed=5, max_tokens=10, best_of=4)
    assert [choice.text for choice in answer.choices] == over_grpc(
        grpc, "The river", seed=5, max_new_tokens=10, best_of=4
    )


@pytest.mark.parametrize(
    ("fields", "config"),
    [
        ({"n": 3, "extra_body": {"use_beam_search": True}}, {"num_beams": 3, "n": 3}),
        ({"n": 2, "best_of": 4, "extra_body": {"use_beam_search": True}}, {"num_beams": 4, "n": 2}),
        ({"extra_body": {"num_beams": 3, "length_penalty": 0.5}}, {"num_beams": 3, "length_penalty": 0.5}),
        ({"stop": ["e"], "extra_body": {"num_beams": 2}}, {"num_beams": 2, "stop_words": ["e"]}),
        ({"extra_body": {"use_beam_search": True}}, {"do_sample": False}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_beams_are_those_of_grpc(client: openai.OpenAI, grpc: Client, fields: Any, config: Any, stream: bool) -> None:
    expected = over_grpc(grpc, "The river", max_new_tokens=12, **config)
    asked: Any = {"model": "tiny", "prompt": "The river", "max_tokens": 12, **fields}
    texts = over_http(client, asked, len(expected), stream=stream)
    assert texts == expected
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [100000]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"extra_body": {"use_beam_search": False, "num_beams": 2}}, "use_beam_search"),
        ({"extra_body": {"use_beam_search": True, "num_beams": 2}, "n": 3}, "n"),
    ],
)
def test_a_wrong_field_is_named(client: openai.OpenAI, fields: Any, field: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{"model": "tiny", "prompt": "a", "max_tokens": 2, **fields})
    assert (caught.value.param or "").startswith(field)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("prompts", "field", "code"),
    [
        (["The river", "The lamp", ""], "prompt[2]", "invalid_field"),
        (["The river", "river " * 4000, "The lamp"], "prompt[1]", "context_length_exceeded"),
        ([[3, 4], [5, 100000], [6]], "prompt[1]", "invalid_field"),
        ([[3, 4], [5], []], "prompt[2]", "invalid_field"),
        ([""], "prompt[0]", "invalid_field"),
    ],
)
def test_one_wrong_prompt_refuses_all(
    client: openai.OpenAI, grpc: Client, gate: Gate, prompts: Any, field: str, code: str, stream: bool
) -> None:
    """Before any event, and before any of them begins."""
    gate.shut()
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt=prompts, max_tokens=20, stream=stream)
    assert (caught.value.param, caught.value.code) == (field, code)
    body: Any = caught.value.body
    assert body["message"].startswith(f"{field} ")
    assert not grpc.list_requests()
    gate.open()
