"""Keys and TLS over HTTP."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2 as httpx
import openai
import pytest
from support.clocks.waiting import LIMIT

from .conftest import MODEL, Secured

OPEN = {"/healthz", "/readyz"}


@pytest.fixture
def http(secured: Secured) -> Iterator[httpx.Client]:
    """A client of HTTP that trusts the gateway's authority."""
    context = ssl.create_default_context(cafile=str(secured.authority.file))
    with httpx.Client(base_url=f"https://{secured.http}", verify=context, timeout=LIMIT) as client:
        yield client


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer no"}, {"x-api-key": ""}, {"authorization": "Basic a"}]
)
def test_bc186_no_route_answers_without_a_key(http: httpx.Client, secured: Secured, headers: dict[str, str]) -> None:
    described = http.get("/openapi.json", headers={"authorization": f"Bearer {secured.keys['web']}"}).json()
    asked = set()
    for path, operations in described["paths"].items():
        for method in operations:
            answer = http.request(method, path.replace("{name}", MODEL), headers=headers, json={})
            if path in OPEN:
                assert answer.status_code == 200
            else:
                assert (answer.status_code, path) == (401, path)
                assert "API key" in answer.text
            asked.add(path)
    assert asked > OPEN
    assert http.get("/openapi.json", headers=headers).status_code == 401
    assert http.get("/nothing", headers=headers).status_code == 401


def test_the_clients_of_both_apis_send_keys(http: httpx.Client, secured: Secured) -> None:
    url = f"https://{secured.http}"
    key, messages = secured.keys["app"], [{"role": "user", "content": "Hello"}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, http_client=http, max_retries=0) as client:
        client.base_url = f"{url}/v1"
        found = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=3)
        assert found.choices[0].finish_reason in ("length", "stop")
        with pytest.raises(openai.PermissionDeniedError, match="may not use model"):
            client.completions.create(model="other", prompt="Hello")


def test_anthropics_client_sends_its_key_by_a_header_of_its_own(secured: Secured) -> None:
    context = ssl.create_default_context(cafile=str(secured.authority.file))
    options: dict[str, Any] = {"http_client": anthropic.DefaultHttpxClient(verify=context), "max_retries": 0}
    message = {"role": "user", "content": "Hello"}
    with anthropic.Anthropic(base_url=f"https://{secured.http}", api_key=secured.keys["web"], **options) as client:
        assert client.messages.create(model=MODEL, messages=[message], max_tokens=3).usage.output_tokens <= 3
    options["http_client"] = anthropic.DefaultHttpxClient(verify=context)
    with (
        anthropic.Anthropic(base_url=f"https://{secured.http}", api_key="wrong", **options) as client,
        pytest.raises(anthropic.AuthenticationError),
    ):
        client.messages.create(model=MODEL, messages=[message], max_tokens=3)


def test_a_stored_response_exists_for_its_owner_alone(http: httpx.Client, secured: Secured) -> None:
    def ask(key: str, method: str, path: str, **more: Any) -> httpx.Response:
        return http.request(method, path, headers={"authorization": f"Bearer {secured.keys[key]}"}, **more)

    body = {"model": MODEL, "input": "Hello", "max_output_tokens": 3, "store": True}
    made = ask("web", "POST", "/v1/responses", json=body)
    assert made.status_code == 200
    path = f"/v1/responses/{made.json()['id']}"
    assert [ask(key, "GET", path).status_code for key in ("web", "job", "app")] == [200, 200, 404]
    assert ask("app", "DELETE", path).status_code == 404
    following = {**body, "previous_response_id": made.json()["id"]}
    assert ask("app", "POST", "/v1/responses", json=following).status_code == 404
    assert ask("job", "DELETE", path).status_code == 200
    assert ask("web", "GET", path).status_code == 404
