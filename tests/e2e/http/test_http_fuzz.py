"""Requests that schemathesis makes from the description of the routes: none may fail the gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headrace import Client
from support.clocks.waiting import LIMIT, wait_until
from support.servers.books import balanced
from support.servers.http_servers import HttpGateway
from support.servers.processes import Server

_KEPT = "StopModel|ReleaseModel|InstallModel|StartModel|Adapter|InspectModel"
"""Routes that would change what the other tests use, or read this machine's files."""

_CHECKS = "not_a_server_error,content_type_conformance,response_schema_conformance"
_FILES = Path(sys.executable).parent


def requests_of(document: Any) -> Iterator[Any]:
    """Yield the schemas of all bodies that are sent."""
    for path in document["paths"].values():
        for operation in path.values():
            if "requestBody" in operation:
                yield operation["requestBody"]["content"]["application/json"]["schema"]


def about_the_model(document: Any) -> Any:
    """Make requests name the model that runs, where they name one, so that they get further than its name."""
    schemas = document["components"]["schemas"]
    for schema in requests_of(document):
        schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        for name in {"model", "modelName"} & schema.get("properties", {}).keys():
            schema["properties"][name] = {"const": "tiny"}
    return document


@pytest.mark.parametrize(
    "amount",
    [
        ("--phases", "fuzzing", "-n", "10"),
        pytest.param(
            ("--phases", "coverage,fuzzing", "-n", "1000"), marks=[pytest.mark.soak, pytest.mark.timeout(3600)]
        ),
    ],
    ids=["short", "long"],
)
def test_no_request_fails_the_gateway(
    gateway: HttpGateway, engine: Server, tmp_path: Path, amount: tuple[str, ...]
) -> None:
    document = json.loads(gateway.ask("GET", "/openapi.json")[2])
    (tmp_path / "routes.json").write_text(json.dumps(about_the_model(document)))
    command = [_FILES / "schemathesis", "run", "routes.json", "-u", f"http://{gateway.http}", "-c", _CHECKS, *amount]
    more = [
        "--exclude-path-regex",
        _KEPT,
        "--request-timeout",
        str(LIMIT),
        "--continue-on-failure",
        "--warnings",
        "off",
    ]
    done = subprocess.run([*command, *more], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert " generated, " in done.stdout
    assert not [event for event in gateway.server.events if event.get("level") == "error"]
    with Client(engine.address) as client:
        for one in client.list_requests():
            client.release_request(one.handle)
        wait_until(lambda: balanced(client) and not client.list_requests(), "the engine still holds requests")
