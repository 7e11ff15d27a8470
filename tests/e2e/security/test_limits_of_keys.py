"""Limits of keys as callers meet them, over gRPC and HTTP."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from typing import Any

import httpx2 as httpx
import pytest
from headrace import Client, ResultQueue, RetryPolicy
from headrace.errors import OverloadedError
from support.clocks.waiting import LIMIT

from .conftest import MODEL, Secured

LONG = {"max_new_tokens": 200, "ignore_eos": True}


@pytest.fixture
def http(secured: Secured) -> Iterator[httpx.Client]:
    """A client of HTTP that trusts the gateway's authority."""
    context = ssl.create_default_context(cafile=str(secured.authority.file))
    with httpx.Client(base_url=f"https://{secured.http}", verify=context, timeout=LIMIT) as client:
        yield client


@pytest.fixture
def impatient(secured: Secured) -> Iterator[Callable[[str], Client]]:
    """Opens clients that do not try again, by the names of their keys."""
    clients: list[Client] = []

    def connect(key: str) -> Client:
        clients.append(secured.client(key, retry=RetryPolicy(give_up_after=0.0)))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def held(client: Client) -> ResultQueue:
    """A request that goes on until it is read: nobody reads it further than its window."""
    _, queue = client.start_request(MODEL, "Hello", **LONG)
    return queue


def ask(http: httpx.Client, secured: Secured, key: str, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 4, **fields}
    return http.post("/v1/completions", json=body, headers={"authorization": f"Bearer {secured.keys[key]}"})


def test_one_request_after_another_meets_no_limit(http: httpx.Client, secured: Secured, impatient) -> None:
    client = impatient("few")
    for _ in range(8):
        _, queue = client.start_request(MODEL, "Hello", max_new_tokens=2)
        while queue.Get() is not None:
            pass
        assert ask(http, secured, "few").status_code == 200


def test_several_prompts_meet_no_limit_where_there_is_room(http: httpx.Client, secured: Secured) -> None:
    for _ in range(8):
        assert ask(http, secured, "pair", prompt=["a", "b"]).status_code == 200


def test_bytes_kept_are_refused_over_both(http: httpx.Client, secured: Secured, impatient) -> None:
    client = impatient("small")
    queues = []
    with pytest.raises(OverloadedError, match=r'API key "small" has \d+ bytes kept.*allowed: 30000') as refused:
        while True:
            queues.append(held(client))
    assert refused.value.reason == "RESULTS_FULL"
    assert refused.value.retry_after > 0
    answer = ask(http, secured, "small", max_tokens=200)
    assert answer.status_code == 429
    assert 'API key "small" has' in answer.json()["error"]["message"]
    assert int(answer.headers["retry-after"]) >= 1
    for queue in queues:
        client.release_request(queue.handle)
    assert ask(http, secured, "small").status_code == 200


def test_tokens_are_charged_over_both(http: httpx.Client, secured: Secured, impatient) -> None:
    client, other = impatient("slow"), impatient("web")
    with pytest.raises(OverloadedError, match='API key "slow" has used up its 60 tokens a minute') as refused:
        while True:
            _, queue = client.start_request(MODEL, "Hello", max_new_tokens=60, ignore_eos=True)
            while queue.Get() is not None:
                pass
    assert refused.value.reason == "RATE_LIMITED"
    answer = ask(http, secured, "slow")
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "rate_limited"
    held(other)


def test_prompts_that_a_key_never_allows_at_once_are_refused(http: httpx.Client, secured: Secured) -> None:
    headers = {"authorization": f"Bearer {secured.keys['few']}"}
    body = {"model": MODEL, "prompt": ["a", "b"], "max_tokens": 1}
    answer = http.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 400
    assert 'has 2 entries, each a request of its own, and API key "few" allows 1' in answer.json()["error"]["message"]
