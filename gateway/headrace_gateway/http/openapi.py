"""`/openapi.json`: the routes and their bodies, made from the structs that read and write them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
from google.protobuf.descriptor import MethodDescriptor

from headrace_gateway import __version__
from headrace_gateway.http.accepted import WARNINGS
from headrace_gateway.http.exchange import Exchange
from headrace_gateway.http.rpc.calls import RpcErrorAnswer, path_of, unary_methods
from headrace_gateway.http.rpc.schemas import schemas_of

_REF = "#/components/schemas/{name}"


@dataclass(frozen=True)
class Operation:
    """A route, and what it does.

    Attributes:
        path: its path.
        method: its HTTP method, in lower case.
        summary: one sentence.
        answer: struct of its answer; None: text.
        request: struct of its body; None: it has none.
        event: struct of the events that it answers with where `stream` is set; None: it does not stream.
        error: struct of the answer to a request that failed; None: it does not fail.
    """

    path: str
    method: str
    summary: str
    answer: Any = None
    request: Any = None
    event: Any = None
    error: Any = None


class OpenApi:
    """Answers with the description of all routes.

    Args:
        operations: the routes.
    """

    def __init__(self, operations: tuple[Operation, ...]) -> None:
        self._operations = operations

    async def __call__(self, exchange: Exchange) -> None:
        """Answer."""
        await exchange.answer_text(document(self._operations), "application/json")


@cache
def document(operations: tuple[Operation, ...]) -> bytes:
    """Return the description of routes as JSON."""
    kinds = {kind for one in operations for kind in (one.answer, one.request, one.event, one.error) if kind is not None}
    kinds.add(RpcErrorAnswer)
    listed = sorted(kinds, key=lambda kind: str(kind.__name__))
    schemas, components = msgspec.json.schema_components(listed, ref_template=_REF)
    found = dict(zip(listed, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method] = _operation(one, found)
    methods = unary_methods()
    components |= schemas_of([kind for one in methods for kind in (one.input_type, one.output_type)], _reference)
    paths |= {path_of(one): {"post": _method(one, found[RpcErrorAnswer])} for one in methods}
    return msgspec.json.format(
        msgspec.json.encode(
            {
                "openapi": "3.1.0",
                "info": {"title": "Headrace", "version": __version__},
                "paths": paths,
                "components": {"schemas": components},
            },
            order="deterministic",
        ),
        indent=1,
    )


def _operation(one: Operation, schemas: dict[Any, Any]) -> dict[str, Any]:
    content = {"text/plain": {"schema": {"type": "string"}}} if one.answer is None else _json(schemas[one.answer])
    if one.event is not None:
        content["text/event-stream"] = {"x-event": schemas[one.event]}
    answer = {"description": "The answer.", "content": content}
    responses: dict[str, Any] = {"200": answer if one.event is None else answer | {"headers": {WARNINGS: _warnings()}}}
    if one.error is not None:
        responses["default"] = {"description": "The request failed.", "content": _json(schemas[one.error])}
    found: dict[str, Any] = {"summary": one.summary, "responses": responses}
    if one.request is not None:
        found["requestBody"] = {"required": True, "content": _json(schemas[one.request])}
    if "{" in one.path:
        name = one.path.partition("{")[2].partition("}")[0]
        found["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
    return found


def _warnings() -> dict[str, Any]:
    text = {"type": "string"}
    entry = {"type": "object", "properties": {"field": text, "message": text}, "required": ["message"]}
    description = "What was accepted and looks like a mistake, such as a field that has no effect."
    return {"description": description, "content": _json({"type": "array", "items": entry})}


def _method(method: MethodDescriptor, error: Any) -> dict[str, Any]:
    """Describe a unary call of the gRPC contract."""
    answer, request = ({"$ref": _reference(kind.full_name)} for kind in (method.output_type, method.input_type))
    return {
        "summary": f"Call {method.name} of gRPC's {method.containing_service.name}.",
        "requestBody": {"required": True, "content": _json(request)},
        "responses": {
            "200": {"description": "The answer.", "content": _json(answer)},
            "default": {"description": "The call failed.", "content": _json(error)},
        },
    }


def _reference(name: str) -> str:
    return _REF.format(name=name)


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
