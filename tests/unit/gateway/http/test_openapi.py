"""The description of the routes, as it is served."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import pytest
from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration
from headrace_gateway.access.access import Access
from headrace_gateway.forwarding.calls import LiveCalls
from headrace_gateway.http.app import application
from headrace_gateway.http.clients import Clients
from headrace_gateway.http.console.files import console_routes
from headrace_gateway.http.generation import Generations
from headrace_gateway.http.probes import Probes
from headrace_proto.v1.generation_pb2 import GenerationConfig, Lease, TokenIds
from headrace_proto.v1.request_service_pb2 import StartRequestRequest
from starlette.routing import Route


@pytest.fixture(scope="module")
def routes() -> list[Route]:
    access, clients = Access(), Clients({}, Access())
    made = application(clients, Generations(clients), LiveCalls(), access, Probes(lambda: True))
    return list(made.routes)


@pytest.fixture
async def described(routes: list[Route]) -> Any:
    """The document that the route answers with."""
    (route,) = [route for route in routes if route.path == "/openapi.json"]
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": route.path, "headers": [], "client": ("127.0.0.1", 1)}
    await route.app(scope, receive, send)
    return json.loads(b"".join(message.get("body", b"") for message in sent))


def test_every_route_is_described(routes: list[Route], described: Any) -> None:
    served = {(route.path.replace(":path}", "}"), method.lower()) for route in routes for method in route.methods or ()}
    listed = {(path, method) for path, methods in described["paths"].items() for method in methods}
    own = {one.path for one in console_routes()} | {"/openapi.json"}
    assert listed == {(path, method) for path, method in served if method != "head" and path not in own}


def schema_of(described: Any, path: str) -> Any:
    content = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return content["schema"] | {"components": described["components"]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "a"}], "stop": ["x"]}),
        ("/v1/completions", {"model": "m", "prompt": [[1, 2], [3]], "logprobs": 2}),
        ("/v1/completions", {"model": "m", "prompt": "a", "structured_outputs": {"choice": ["a", "b"]}}),
        ("/v1/embeddings", {"model": "m", "input": ["a"]}),
    ],
)
def test_bodies_are_described(described: Any, path: str, body: Any) -> None:
    jsonschema.validate(body, schema_of(described, path))
    for wrong in (body | {"colour": 1}, {"model": "m"}, body | {"model": 3}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema_of(described, path))


def test_messages_of_the_contract_are_described(described: Any) -> None:
    lease = Lease(running=Duration(seconds=1, nanos=5))
    config = GenerationConfig(seed=2**63, temperature=math.nan, logit_bias={7: 1.5}, lease=lease)
    message = StartRequestRequest(model_name="m", token_ids=TokenIds(ids=[1, 2]), config=config)
    schema = schema_of(described, "/headrace.v1.RequestService/StartRequest")
    body = json_format.MessageToDict(message)
    jsonschema.validate(body, schema)
    for wrong in (
        body | {"colour": 1},
        body | {"tokenIds": {"ids": [{}]}},
        body | {"config": {"lease": {"running": 3}}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_every_schema_that_is_named_is_there(described: Any) -> None:
    text = json.dumps(described)
    named = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= described["components"]["schemas"].keys()
    assert len(named) > 10
