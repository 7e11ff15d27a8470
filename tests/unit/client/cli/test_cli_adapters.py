"""The commands about adapters."""

from __future__ import annotations

import pytest
from headrace_proto.v1 import model_pb2, status_pb2
from headrace_proto.v1 import model_service_pb2 as wire
from support.scripted.server import ScriptedServer
from unit.client.cli.command_line import run

FAILURE = status_pb2.Status(code=9, message="in use")


def adapter(engine: str = "e1", **fields: object) -> model_pb2.AdapterInfo:
    """An adapter on an engine."""
    return model_pb2.AdapterInfo(model_name="smol", engine=engine, **fields)  # type: ignore[arg-type]


def test_adapters_are_columns_and_failures_lines(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    found = [adapter("e2", failure=FAILURE), adapter(name="sql", rank=8, sequences=3, path="/a/sql")]
    server.expect("ListAdapters", wire.ListAdaptersResponse(adapters=found))
    assert run(server, "adapters", "smol") == 1
    out, err = capsys.readouterr()
    assert out == "sql\te1\t8\t3\t/a/sql\n"
    assert "NOT LISTED on e2: in use" in err


def test_loading_tells_what_made_room(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = adapter(name="sql", rank=8, unloaded="poet")
    server.expect("LoadAdapter", wire.LoadAdapterResponse(engines=[loaded]))
    assert run(server, "load-adapter", "smol", "sql", "/a/sql", "--engine", "e1") == 0
    assert "LOADED sql on e1: rank 8, instead of poet" in capsys.readouterr().err
    request = server.requests("LoadAdapter")[0]
    assert (request.model_name, request.name, request.path, list(request.engine_ids)) == (
        "smol",
        "sql",
        "/a/sql",
        ["e1"],
    )


def test_unloading_tells_each_outcome(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    found = [adapter(name="sql"), adapter("e2", failure=FAILURE)]
    server.expect("UnloadAdapter", wire.UnloadAdapterResponse(engines=found))
    assert run(server, "unload-adapter", "smol", "sql") == 1
    err = capsys.readouterr().err
    assert "UNLOADED sql on e1" in err
    assert "NOT UNLOADED on e2: in use" in err
