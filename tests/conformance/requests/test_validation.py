"""Requests that are validated, and not started."""

from __future__ import annotations

from typing import Any

import pytest
from headrace import Client, HeadraceError, InvalidRequestError
from support.contract.places import MAX_LENGTH, MODEL, Folders

WRONG: list[dict[str, Any]] = [
    {"ids": []},
    {"ids": [9999]},
    {"ids": [1] * MAX_LENGTH},
    {"text": "a", "top_p": 3.0},
    {"text": "a", "lora_name": "none"},
    {"ids": [1], "response_format": {"type": "regex", "regex": "[a-"}},
    {"ids": [1], "num_beams": 10_000},
    {"messages": [{"role": "user", "content": "a"}], "template_variables": {"messages": 3}},
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda fields: list(fields)[-1])
def test_what_a_start_refuses_is_refused_alike(client: Client, wrong: dict[str, Any]) -> None:
    with pytest.raises(HeadraceError) as validated:
        client.validate_request(MODEL, **wrong)
    with pytest.raises(HeadraceError) as started:
        client.start_request(MODEL, **wrong)
    assert type(validated.value) is type(started.value)
    assert validated.value.reason == started.value.reason
    assert _sentence(validated.value) == _sentence(started.value)


def _sentence(error: HeadraceError) -> str:
    """What an error says, without the request that it is about: what is validated has no id."""
    return str(error).partition(" [")[0]


def test_a_model_that_is_not_there_is_refused(client: Client) -> None:
    with pytest.raises(HeadraceError) as caught:
        client.validate_request("none", text="a")
    assert caught.value.reason == "UNKNOWN_MODEL"


def test_what_no_budget_would_hold_is_refused(client: Client, folders: Folders) -> None:
    client.install_model("tight", path=str(folders.tiny), max_length=64, num_threads=1, max_result_bytes=4_000)
    client.start_model("tight")
    try:
        for call in (client.validate_request, client.start_request):
            with pytest.raises(InvalidRequestError, match="max_result_bytes is 4000"):
                call("tight", ids=[1, 2], max_new_tokens=60)
    finally:
        client.stop_model("tight")
        client.release_model("tight")


def test_more_sequences_than_ever_start_are_refused(client: Client, folders: Folders) -> None:
    client.install_model("narrow", path=str(folders.tiny), max_length=64, num_threads=1, max_batch=2, max_waiting=2)
    client.start_model("narrow")
    try:
        for call in (client.validate_request, client.start_request):
            with pytest.raises(InvalidRequestError, match="n = 5 never starts: 2 sequences"):
                call("narrow", ids=[1, 2], n=5, max_new_tokens=2)
    finally:
        client.stop_model("narrow")
        client.release_model("narrow")


def test_nothing_is_started(client: Client) -> None:
    before = [one.handle for one in client.list_requests(MODEL)]
    client.validate_request(MODEL, text="Once upon", n=3, response_format={"type": "regex", "regex": "[a-z]+"})
    client.validate_request(MODEL, [{"role": "user", "content": "Hello"}], max_new_tokens=4)
    assert [one.handle for one in client.list_requests(MODEL)] == before
