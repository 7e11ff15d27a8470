"""Embeddings: pooled last hidden states, as transformers gives them, on every path."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from headrace import Client, InternalServerError, InvalidRequestError, NotFoundError
from headrace.types import Embedding
from support.contract.places import BROKEN_MODEL, MAX_LENGTH, MODEL, SIM, SMALL_POOL_MODEL, Place
from support.servers.wire import Wire
from transformers import AutoModelForCausalLM

RANDOM = np.random.default_rng(5)
BFLOAT16 = 0.03
"""Largest error of a device's states, which are rounded after each op."""
PROMPTS = [RANDOM.integers(3, 384, length).tolist() for length in (1, 2, 15, 16, 17, 100, MAX_LENGTH - 1)]


@cache
def reference(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def expected(place: Place, ids: Sequence[int], pooling: str, normalize: bool) -> np.ndarray:
    with torch.no_grad():
        found = reference(place.folder)(torch.tensor([list(ids)]), output_hidden_states=True)
    states = found.hidden_states[-1][0].double().numpy()
    vector = states[-1] if pooling == "LAST" else states.mean(0)
    return vector / np.linalg.norm(vector) if normalize else vector


def assert_equal(place: Place, found: Embedding, ids: Sequence[int], pooling: str, normalize: bool) -> None:
    vector = expected(place, ids, pooling, normalize)
    error = np.abs(np.array(found.values) - vector).max() / np.abs(vector).max()
    assert error < (BFLOAT16 if place.path == SIM else 1e-5)
    assert found.prompt_token_count == len(ids)


@pytest.mark.ranks
@pytest.mark.sim
@pytest.mark.parametrize("pooling", ["LAST", "MEAN"])
def test_embeddings_are_pooled_last_hidden_states(place: Place, client: Client, pooling: Any) -> None:
    prompts = PROMPTS[:-1] if place.path == SIM else PROMPTS  # The simulator takes a millisecond per token.
    for normalize in (True, False):
        found = client.embed(MODEL, prompts, pooling=pooling, normalize=normalize)
        for ids, embedding in zip(prompts, found, strict=True):
            assert_equal(place, embedding, ids, pooling, normalize)
    assert client.list_requests() == []


def test_last_and_normalized_are_the_defaults(client: Client, wire: Wire) -> None:
    answer = wire.call("Embed", model_name=MODEL, inputs=[{"text": "Hello river"}])
    found = client.embed(MODEL, "Hello river", pooling="LAST", normalize=True)
    assert list(answer.embeddings[0].values) == pytest.approx(found[0].values, abs=1e-6)


def test_texts_and_messages_become_the_ids_of_requests(client: Client) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    ids = [client.tokenize(MODEL, text="Hello river").ids, client.tokenize(MODEL, messages=messages).ids]
    by_ids = client.embed(MODEL, ids, pooling="MEAN")
    found = client.embed(MODEL, ["Hello river", messages], pooling="MEAN")
    for one, other in zip(found, by_ids, strict=True):
        assert one.values == pytest.approx(other.values, abs=1e-6)
        assert one.prompt_token_count == other.prompt_token_count


def test_they_are_computed_beside_requests_that_fill_the_pool(place: Place, client: Client) -> None:
    prompts = [RANDOM.integers(3, 384, 100).tolist() for _ in range(12)]
    handles = [
        client.start_request(SMALL_POOL_MODEL, ids=[5, number], ignore_eos=True, max_new_tokens=120)[0]
        for number in range(4)
    ]
    with ThreadPoolExecutor(3) as pool:
        parts = list(pool.map(lambda at: client.embed(SMALL_POOL_MODEL, prompts[at::3], pooling="MEAN"), range(3)))
    for ids, embedding in zip(prompts, [parts[at % 3][at // 3] for at in range(len(prompts))], strict=True):
        assert_equal(place, embedding, ids, "MEAN", True)
    for handle in handles:
        client.release_request(handle)


@pytest.mark.parametrize(
    ("prompts", "fields", "text"),
    [
        ([], {}, "inputs has 0 entries; allowed: 1 to 64"),
        (["a"] * 65, {}, "inputs has 65 entries; allowed: 1 to 64"),
        ([[1], [1, 9999]], {}, r"inputs\[1\].prompt holds 9999"),
        ([[1], []], {}, r"inputs\[1\].prompt is empty"),
        ([[1] * MAX_LENGTH], {}, rf"inputs\[0\].prompt has {MAX_LENGTH} tokens"),
        (["a"], {"pooling": "MAX"}, "pooling = 'MAX'"),
        ([5], {}, "prompt = 5"),
        ([[1]], {"add_special_tokens": True}, "add_special_tokens"),
    ],
)
def test_what_cannot_be_embedded_is_refused(client: Client, prompts: Any, fields: Any, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text):
        client.embed(MODEL, prompts, **fields)
    assert client.list_requests() == []


def test_other_failures_are_those_of_requests(client: Client) -> None:
    with pytest.raises(NotFoundError, match="nothing"):
        client.embed("nothing", "a")
    with pytest.raises(InternalServerError, match="not finite"):
        client.embed(BROKEN_MODEL, ["a", "b"])
    assert client.list_requests() == []
