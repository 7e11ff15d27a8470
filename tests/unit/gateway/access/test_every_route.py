"""Every route of HTTP, as the application has them: without a key, with a wrong one, and with bodies that are none."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest
from headrace_proto.pure.limits import MAX_REQUEST_BYTES
from support.clocks.waiting import LIMIT
from support.scripted.engine_answers import RUNNING
from unit.gateway.access.keyed import Keyed
from unit.gateway.conftest import Front, World

PROBES = {"/healthz", "/readyz"}
CONSOLE = "/console"
"""Beginning of the paths of the console's files, which hold no secret: what they show, they ask for with a key."""


class Routes:
    """A gateway with keys, and its routes.

    Attributes:
        all: method and path of each, with names filled in.
        guarded: those that need a key.
    """

    def __init__(self, front: Front, key: str, some: str) -> None:
        http = front.gateway.http
        assert http is not None
        self.url, self.key, self.some = f"http://{http.address}", key, some
        self.all = [
            (method, route.path.replace("{name:path}", "smol").replace("{name}", "resp_1"))
            for route in http._config.app.routes
            for method in sorted(route.methods - {"HEAD"})
        ]
        self.guarded = [
            (method, path) for method, path in self.all if path not in PROBES | {"/"} and not path.startswith(CONSOLE)
        ]

    async def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        async with httpx.AsyncClient(timeout=LIMIT) as client:
            return await client.request(method, self.url + path, **more)

    def headers(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}", "content-type": "application/json"}


@pytest.fixture
async def routes(world: World, keyed: Keyed) -> Routes:
    engine = await world.engine(smol=RUNNING, large=RUNNING)
    ((_, key),), ((_, some),) = keyed.key("ops", admin=True), keyed.key("web", models=["smol"])
    front = await keyed.gateway(e1=engine, http=True)
    return Routes(front, key.removeprefix("Bearer "), some.removeprefix("Bearer "))


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer no"}, {"x-api-key": "no"}, {"authorization": "Basic a"}], ids=str
)
async def test_no_route_answers_without_a_valid_key(routes: Routes, headers: dict[str, str]) -> None:
    assert len(routes.guarded) > 30, "they are found"
    for method, path in routes.guarded:
        answer = await routes.ask(method, path, headers=headers, json={})
        assert (answer.status_code, path) == (401, path)
        assert "API key" in answer.text
    for method, path in [("GET", "/nothing"), ("POST", "/v1/nothing"), ("PUT", "/v1/models")]:
        assert (await routes.ask(method, path, headers=headers)).status_code in (401, 405)


async def test_open_routes_say_nothing_of_models_and_requests(routes: Routes) -> None:
    for method, path in set(routes.all) - set(routes.guarded):
        answer = await routes.ask(method, path)
        assert answer.status_code in (200, 307), path
        assert "smol" not in answer.text or path.startswith(CONSOLE)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"a"', b'{"a": 1, "a": 2}', b"\xff", b'{"a": NaN}'], ids=str)
async def test_bodies_that_are_no_objects_are_refused(routes: Routes, body: bytes) -> None:
    for method, path in routes.guarded:
        if method == "POST" and not path.endswith("/cancel"):
            answer = await routes.ask(method, path, headers=routes.headers(routes.key), content=body)
            assert (answer.status_code, path) == (400, path)


async def test_a_body_that_is_too_large_is_refused(routes: Routes) -> None:
    large = b" " * (MAX_REQUEST_BYTES + 1)
    for method, path in routes.guarded:
        if method == "POST" and not path.endswith("/cancel"):
            answer = await routes.ask(method, path, headers=routes.headers(routes.key), content=large)
            assert (answer.status_code, path) == (413, path)


async def test_a_key_for_other_models_is_refused_by_name(routes: Routes) -> None:
    chat, headers = [{"role": "user", "content": "a"}], routes.headers(routes.some)
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": chat},
        "/v1/completions": {"prompt": "a"},
        "/v1/embeddings": {"input": "a"},
        "/v1/responses": {"input": "a"},
        "/v1/responses/input_tokens": {"input": "a"},
        "/v1/messages": {"messages": chat, "max_tokens": 1},
        "/v1/messages/count_tokens": {"messages": chat},
    }
    ours = {path for method, path in routes.guarded if method == "POST" and path.startswith("/v1/")}
    assert {path for path in ours if not path.endswith("/cancel")} == bodies.keys()
    for path, body in bodies.items():
        answer = await routes.ask("POST", path, headers=headers, json={"model": "large", **body})
        assert (answer.status_code, path) == (403, path)
        assert 'may not use model \\"large\\"' in answer.text
