"""`/openapi.json`: the routes and their bodies, made from the structs that read and write them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from headrace_gateway import __version__
from headrace_gateway.http.exchange import Exchange

_REF = "#/components/schemas/{name}"


@dataclass(frozen=True)
class Operation:
    """What a route does.

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
    listed = sorted(kinds, key=lambda kind: str(kind.__name__))
    schemas, components = msgspec.json.schema_components(listed, ref_template=_REF)
    found = dict(zip(listed, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method] = _operation(one, found)
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
        content["text/event-stream"] = {"schema": {"type": "string", "x-event": schemas[one.event]}}
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": content}}
    if one.error is not None:
        responses["default"] = {"description": "The request failed.", "content": _json(schemas[one.error])}
    found: dict[str, Any] = {"summary": one.summary, "responses": responses}
    if one.request is not None:
        found["requestBody"] = {"required": True, "content": _json(schemas[one.request])}
    if "{" in one.path:
        name = one.path.partition("{")[2].partition("}")[0]
        found["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
    return found


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
