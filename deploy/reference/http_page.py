"""The page of HTTP, made from what `/openapi.json` answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from headrace_gateway.http.app import OPERATIONS
from headrace_gateway.http.openapi import document

_HEAD = """\
# Routes of HTTP

Made by `make docs` from the description that a gateway answers at `/openapi.json`, and so from what reads and writes
bodies. What fields mean, and where APIs differ from those of their inventors, is told by [http.md](../http.md).
"""

_OWN = "headrace_gateway.http."
_CONTRACT = "/headrace.v1."


def page() -> str:
    """Return the page."""
    described = json.loads(document(OPERATIONS))
    paths, schemas = described["paths"], described["components"]["schemas"]
    shown = {name: schema for name, schema in schemas.items() if not name.startswith(("headrace.v1.", "google."))}
    parts = [
        *(line for path, methods in paths.items() if not _of_contract(path) for line in _route(path, methods)),
        "## Calls of the gRPC contract",
        "By the Connect protocol: messages in protobuf's JSON form, as [grpc.md](grpc.md) has them.",
        "\n".join(f"- `POST {path}`: {_rpc(path)}" for path in paths if _of_contract(path)),
        "## Bodies",
        *(line for name, schema in sorted(shown.items(), key=_sorting) for line in _body(name, schema)),
    ]
    return _HEAD + "\n" + "\n\n".join(parts) + "\n"


def _of_contract(path: str) -> bool:
    return path.startswith(_CONTRACT)


def _rpc(path: str) -> str:
    name = path.removeprefix(_CONTRACT).replace("/", ".")
    return f"[{name}](grpc.md#{name.lower().replace('.', '')})"


def _sorting(entry: tuple[str, Any]) -> str:
    return _short(entry[0]).lower()


def _route(path: str, methods: dict[str, Any]) -> Iterator[str]:
    for method, operation in methods.items():
        yield f"## {method.upper()} {path}"
        yield operation["summary"]
        content = operation["responses"]["200"]["content"]
        body, failed = operation.get("requestBody"), operation["responses"].get("default")
        lines = [
            "" if body is None else f"- body: {_json(body['content'])}",
            f"- answer: {_json(content)}" if "application/json" in content else "- answer: text",
        ]
        if "text/event-stream" in content:
            lines.append(f"- events, with `stream`: {_kind(content['text/event-stream']['x-event'])} and others")
        lines.append("" if failed is None else f"- failure: {_json(failed['content'])}")
        yield "\n".join(filter(None, lines))


def _json(content: dict[str, Any]) -> str:
    return _kind(content["application/json"]["schema"])


def _body(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"### {_short(name)}"
    text, meanings = _parted(schema.get("description", ""))
    if text:
        yield text
    fields = schema.get("properties")
    if fields is None:
        yield f"Type: {_kind(schema)}."
        return
    required = schema.get("required", ())
    rows = [
        f"| `{field}` | {_kind(kind)} | {_default(kind, field in required)} | {_cell(meanings.get(field, ''))} |"
        for field, kind in fields.items()
    ]
    yield "\n".join(["| field | type | default | |", "|---|---|---|---|", *rows])


def _parted(docstring: str) -> tuple[str, dict[str, str]]:
    """Return the text of a docstring as one line, and what it says of attributes."""
    text, _, attributes = docstring.partition("Attributes:")
    found = re.findall(r"^ +(\w+): (.*(?:\n {9,}\S.*)*)", attributes, re.MULTILINE)
    return " ".join(text.split()), {name: " ".join(meaning.split()) for name, meaning in found}


def _default(schema: dict[str, Any], required: bool) -> str:
    if required:
        return "required"
    default = schema.get("default")
    return "" if default is None else f"`{json.dumps(default)}`"


def _kind(schema: dict[str, Any]) -> str:
    """Return the name of a schema's type."""
    if "$ref" in schema:
        name = _short(schema["$ref"].rpartition("/")[2])
        return f"[{name}](#{re.sub('[^a-z0-9_-]', '', name.lower())})"
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return " or ".join(kind for one in schema[word] if (kind := _kind(one)) != "null") or "null"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(one)}`" for one in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    inner = schema.get("additionalProperties")
    return f"object of {_kind(inner)}" if kind == "object" and isinstance(inner, dict) else str(kind)


def _short(name: str) -> str:
    return name.removeprefix(_OWN)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
