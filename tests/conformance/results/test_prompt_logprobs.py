"""Sections 3 and 4: log-probabilities of the prompt, and the vectors of each token, on every path."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from headrace import Client, GeneratedElements, InvalidRequestError
from headrace.types import PromptLogprobs
from headrace_proto.v1 import request_pb2
from support.contract.places import LONG_LENGTH, LONG_MODEL, MODEL, SMALL_POOL_MODEL, Place
from support.servers.wire import Wire

VOCAB, HIDDEN = 384, 64
PROMPT = [1, 2, 3, 40, 41, 40, 41, 9, 300, 17, 5]
GREEDY = {"ignore_eos": True, "do_sample": False, "max_new_tokens": 4}


def prompt_of(client: Client, handle: str, begin: int = 0) -> list[PromptLogprobs]:
    """All pieces of a prompt from a place on; its first token is there."""
    client.get_request(handle, wait=60, from_position=0)
    pieces: list[PromptLogprobs] = []
    while (piece := client.get_request(handle, prompt_logprobs_from=begin).prompt_logprobs) is not None:
        pieces.append(piece)
        begin = piece.position + len(piece.ids)
    return pieces


def reported(client: Client, ids: list[int], top: int = 2, **fields: object) -> PromptLogprobs:
    """What is told of a prompt by a request of its own, in one piece."""
    handle, queue = client.start_request(MODEL, ids=ids, prompt_logprobs=top, **{**GREEDY, **fields})  # type: ignore[arg-type]
    (piece,) = prompt_of(client, handle)
    assert [len(choice.Get().ids_from_generate) > 0 for choice in queue.choices]
    client.release_request(handle)
    return piece


def generated(client: Client, ids: list[int], count: int) -> list[GeneratedElements]:
    """Greedy tokens with their log-probabilities."""
    handle, queue = client.start_request(
        MODEL, ids=ids, ignore_eos=True, do_sample=False, max_new_tokens=count, logprobs=True, top_logprobs=2
    )
    found = list(queue)
    client.release_request(handle)
    return found


def test_a_prompt_is_told_as_the_same_tokens_generated_were(client: Client) -> None:
    """Its last tokens were generated before, so they had log-probabilities then."""
    found = generated(client, PROMPT, 9)
    ids = [token for one in found for token in one.ids_from_generate]
    values = [value for one in found for value in one.token_logprobs_list]
    tops = [[token for token, _ in row] for one in found for row in one.log_probs_list]
    piece = reported(client, [*PROMPT, *ids])
    assert (piece.position, piece.ids) == (1, [*PROMPT, *ids][1:])
    assert len(piece.token_logprobs_list) == len(piece.log_probs_list) == len(PROMPT) + 8
    assert piece.token_logprobs_list[-9:] == pytest.approx(values, abs=1e-3)
    assert [[token for token, _ in row] for row in piece.log_probs_list[-9:]] == tops
    assert [row[0] for row in tops] == ids


@pytest.mark.parametrize("top", [0, 1, 20])
@pytest.mark.ranks
@pytest.mark.sim
def test_bc054_prompt_tokens_have_as_many_alternatives_as_asked(client: Client, top: int) -> None:
    piece = reported(client, PROMPT, top)
    for token, logprob, row in zip(piece.ids, piece.token_logprobs_list, piece.log_probs_list, strict=True):
        assert len({other for other, _ in row}) == len(row) == top
        assert [value for _, value in row] == sorted((value for _, value in row), reverse=True)
        assert math.isfinite(logprob)
        assert dict(row).get(token, logprob) == logprob
    everything = reported(client, PROMPT, 20)
    assert piece.token_logprobs_list == everything.token_logprobs_list
    assert piece.log_probs_list == [row[:top] for row in everything.log_probs_list]


@pytest.mark.parametrize("top", [-1, 21, VOCAB, 2**31 - 1])
def test_bc061_the_most_alternatives_are_named(client: Client, top: int) -> None:
    with pytest.raises(InvalidRequestError, match="prompt_logprobs"):
        client.start_request(MODEL, ids=PROMPT, prompt_logprobs=top)


@pytest.mark.sim
def test_the_prefix_cache_is_not_read_and_is_filled(client: Client) -> None:
    ids = [token % VOCAB for token in range(7, 7 + 64)]
    first = reported(client, ids, cache_salt="told")
    assert reported(client, ids, cache_salt="told") == first
    handle, queue = client.start_request(MODEL, ids=ids, cache_salt="told", max_new_tokens=1)
    elements = queue.Get()
    assert elements is not None
    assert elements.prefix_cache_len == 48
    client.release_request(handle)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 4, "do_sample": True, "seed": 5},
        {"n": 2, "best_of": 5, "do_sample": True, "seed": 5},
        {"response_format": {"type": "regex", "regex": "[a-z]{9,}"}},
        {"repetition_penalty": 1.5, "temperature": 9.0, "do_sample": True, "bad_words_ids": [[41]]},
        {"use_prefix_cache": False},
        {"n": 3, "max_new_tokens": 1, "do_sample": True},
    ],
    ids=str,
)
def test_a_prompt_is_told_alike_whatever_is_generated(client: Client, fields: dict[str, object]) -> None:
    """It is the model's own opinion of it, told once for all sequences."""
    assert reported(client, PROMPT, **fields) == reported(client, PROMPT)


def test_a_prompt_is_read_from_any_place(client: Client) -> None:
    ids = [(3 + place * 7) % VOCAB for place in range(200)]
    whole = reported(client, ids, 20)
    assert len(whole.ids) == 199
    handle, _ = client.start_request(MODEL, ids=ids, prompt_logprobs=20, max_new_tokens=1)
    for begin in (1, 2, 57, 198, 199):
        (rest,) = prompt_of(client, handle, begin)
        assert (rest.position, rest.ids) == (begin, ids[begin:])
        assert rest.token_logprobs_list == whole.token_logprobs_list[begin - 1 :]
        assert rest.log_probs_list == whole.log_probs_list[begin - 1 :]


def test_generate_tells_the_prompt_before_its_first_token(client: Client, wire: Wire) -> None:
    config = {"prompt_logprobs": 2, "max_new_tokens": 3, "n": 2, "ignore_eos": True, "seed": 3}
    accepted, first, *others = wire.stream("Generate", model_name=MODEL, token_ids={"ids": PROMPT}, config=config)
    assert accepted.request.prompt_token_count == len(PROMPT)
    assert first.status == request_pb2.GENERATE_STATUS_INIT
    assert not first.HasField("elements")
    piece, alone = first.prompt_logprobs, reported(client, PROMPT)
    assert (piece.position, list(piece.token_ids)) == (1, PROMPT[1:])
    assert list(piece.logprobs.token_logprobs) == alone.token_logprobs_list
    assert list(piece.logprobs.top_ids) == [token for row in alone.log_probs_list for token, _ in row]
    assert not any(answer.HasField("prompt_logprobs") for answer in others)


def test_who_did_not_ask_for_the_prompt_is_told_so(client: Client) -> None:
    handle, _ = client.start_request(MODEL, ids=PROMPT, max_new_tokens=1)
    with pytest.raises(InvalidRequestError, match="prompt_logprobs") as refusal:
        client.get_request(handle, prompt_logprobs_from=0)
    assert refusal.value.reason == "INVALID_FIELD"


def test_places_beyond_the_prompt_are_refused(client: Client) -> None:
    handle, _ = client.start_request(MODEL, ids=PROMPT, prompt_logprobs=0, max_new_tokens=1)
    assert prompt_of(client, handle, len(PROMPT)) == []
    with pytest.raises(InvalidRequestError, match="allowed: 0 to 11") as refusal:
        client.get_request(handle, prompt_logprobs_from=len(PROMPT) + 1)
    assert refusal.value.reason == "POSITION_OUT_OF_RANGE"


@pytest.mark.ranks
@pytest.mark.sim
def test_prompts_are_told_under_preemption_and_among_others(client: Client) -> None:
    """A small pool, in which sequences give way to one another."""
    prompts = [[(seed * 31 + place * 7) % VOCAB for place in range(30 + seed)] for seed in range(6)]
    alone = [reported(client, ids, 3) for ids in prompts]
    handles = [
        client.start_request(
            SMALL_POOL_MODEL, ids=ids, max_new_tokens=60, ignore_eos=True, do_sample=False,
            **({"prompt_logprobs": 3} if place % 2 == 0 else {}),  # type: ignore[arg-type]
        )[0]
        for place, ids in enumerate(prompts)
    ]  # fmt: skip
    infos = [client.get_request(handle, wait=60) for handle in handles]
    assert sum(info.sequences[0].stat["preemptions"] or 0 for info in infos) > 0
    for place, handle in enumerate(handles):
        if place % 2 == 0:
            assert prompt_of(client, handle) == [alone[place]]


def test_a_hand_over_tells_the_prompt_again(client: Client, wire: Wire) -> None:
    """Whatever the readers have; where all had ended there is nothing to compute, and nothing to tell."""
    whole = reported(client, PROMPT, 1)
    ids = [token for one in generated(client, PROMPT, 4) for token in one.ids_from_generate]
    for ended in (False, True):
        delivered = {"delivered_ids": ids[:4] if ended else ids[:2], "ended": ended}
        config = {"prompt_logprobs": 1, "max_new_tokens": 4, "do_sample": False, "ignore_eos": True}
        key = {"request_id": f"told-{ended}-{uuid4()}", "handover": 1}
        handle = wire.start(MODEL, PROMPT, config=config, resume={"sequences": [delivered]}, **key).handle
        client.sync_request(handle)
        piece = client.get_request(handle, prompt_logprobs_from=0).prompt_logprobs
        assert piece == (None if ended else whole)


def test_a_stop_leaves_what_was_told(client: Client) -> None:
    """Stopped at any moment, what is told of the prompt is a beginning of it, and nothing else is upset."""
    ids = [(3 + place * 7) % VOCAB for place in range(200)]
    whole = reported(client, ids, 1, max_new_tokens=1)
    for _ in range(4):
        handle, _ = client.start_request(MODEL, ids=ids, prompt_logprobs=1, max_new_tokens=8)
        client.stop_request(handle)
        piece = client.get_request(handle, prompt_logprobs_from=0).prompt_logprobs
        if piece is not None:
            assert piece.token_logprobs_list == whole.token_logprobs_list[: len(piece.ids)]


def vectors(elements: Iterator[GeneratedElements]) -> tuple[list[int], list[list[float]], list[list[float]]]:
    """Ids, embeddings and hidden states."""
    ids: list[int] = []
    found: dict[str, list[list[float]]] = {"inputs_embedding": [], "hidden_states": []}
    for one in elements:
        assert len(one.tensors_from_model_inference) == len(one.ids_from_generate)
        ids += one.ids_from_generate
        for tensors in one.tensors_from_model_inference:
            assert tensors.keys() == found.keys()
            for name, tensor in tensors.items():
                assert (tensor.dtype, tensor.shape) == ("FLOAT32", (HIDDEN,))
                found[name].append(list(struct.unpack(f"<{HIDDEN}f", tensor.data)))
    return ids, found["inputs_embedding"], found["hidden_states"]


def test_vectors_come_with_every_token(client: Client) -> None:
    """An id has the same embedding wherever it stands; the same context makes the same hidden state."""
    fields = {**GREEDY, "max_new_tokens": 40, "enable_tensors_from_model_inference": True}
    _, queue = client.start_request(MODEL, ids=PROMPT, **fields)  # type: ignore[arg-type]
    ids, embeddings, states = vectors(iter(queue))
    assert len(ids) == 40
    by_id = {}
    for token, embedding in zip([PROMPT[-1], *ids[:-1]], embeddings, strict=True):
        assert by_id.setdefault(token, embedding) == embedding
    assert len({tuple(state) for state in states}) == 40
    _, later = client.start_request(MODEL, ids=[*PROMPT, *ids[:10]], **{**fields, "max_new_tokens": 5})  # type: ignore[arg-type]
    again, _, same = vectors(iter(later))
    assert again == ids[10:15]
    for mine, theirs in zip(same, states[10:15], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-3)


def test_vectors_and_logprobs_come_together_for_each_sequence(client: Client) -> None:
    _, queue = client.start_request(
        MODEL, ids=PROMPT, n=3, seed=4, ignore_eos=True, max_new_tokens=6, logprobs=True, top_logprobs=3,
        enable_tensors_from_model_inference=True,
    )  # fmt: skip
    firsts = []
    for choice in queue.choices:
        elements = list(choice)
        assert sum(len(one.token_logprobs_list) for one in elements) == 6
        firsts.append(vectors(iter(elements))[2][0])
    for first in firsts:  # All are drawn from one state, which was computed with others or alone.
        assert first == pytest.approx(firsts[0], abs=1e-3)


def test_a_stream_of_one_sequence_carries_vectors_too(client: Client, wire: Wire) -> None:
    handle, queue = client.start_request(
        MODEL,
        ids=PROMPT,
        enable_tensors_from_model_inference=True,
        **GREEDY,  # type: ignore[arg-type]
    )
    _, embeddings, states = vectors(iter(queue))
    found = [
        {named.name: named.tensor for named in answer.elements.tensors}
        for answer in wire.stream("GeneratedElements", handle=handle)
        if answer.HasField("elements")
    ]
    for name, expected in (("inputs_embedding", embeddings), ("hidden_states", states)):
        data = b"".join(tensors[name].data for tensors in found)
        assert sum(tensors[name].shape[0] for tensors in found) == 4
        assert list(struct.unpack(f"<{4 * HIDDEN}f", data)) == [number for row in expected for number in row]
    polled = client.get_request(handle, from_position=2).elements
    assert polled is not None
    assert vectors(iter([polled]))[2] == states[2:]


def test_vectors_take_room_of_the_results(client: Client, place: Place) -> None:
    """The worst case is reserved at the start: two numbers of four bytes a token more for each of the hidden size."""
    asked = {"n": 64, "logprobs": True, "top_logprobs": 20, "enable_tensors_from_model_inference": True}
    hidden = json.loads((place.long / "config.json").read_text())["hidden_size"]
    token = 128 + 20 * 8 + 2 * hidden * 4
    size, most = 64 * (2048 + (LONG_LENGTH - 1) * token), (2**28 // 64 - 2048) // token
    with pytest.raises(InvalidRequestError, match=f"may need {size} bytes .* ask for at most {most} tokens"):
        client.start_request(LONG_MODEL, ids=[5], **asked)  # type: ignore[arg-type]


def test_slow_readers_get_all_vectors(client: Client) -> None:
    """Several at once, each after its request has ended, in messages of at most a mebibyte."""
    fields = {"ignore_eos": True, "max_new_tokens": 200, "enable_tensors_from_model_inference": True, "seed": 1}
    queues = [client.start_request(MODEL, ids=[5, place], **fields)[1] for place in range(4)]  # type: ignore[arg-type]
    client.sync_request(model=MODEL)
    with ThreadPoolExecutor(4) as pool:
        for ids, embeddings, states in pool.map(lambda queue: vectors(iter(queue)), queues):
            assert len(ids) == len(embeddings) == len(states) == 200
