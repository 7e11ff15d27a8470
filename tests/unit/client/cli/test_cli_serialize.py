"""`headrace serialize`: what it asks, shows and prints."""

from __future__ import annotations

import grpc
import pytest
from headrace_proto.v1 import model_pb2, model_service_pb2, runtime_pb2
from support.scripted.replies import Failure
from support.scripted.server import ScriptedServer
from unit.client.cli.command_line import run
from unit.client.cli.test_cli_models import NO_ROOM


def step(engine: str, **fields: object) -> model_service_pb2.SerializeModelResponse:
    return model_service_pb2.SerializeModelResponse(engine=engine, **fields)  # type: ignore[arg-type]


def converting(engine: str, done: int) -> model_service_pb2.SerializeModelResponse:
    progress = model_pb2.ModelProgress(phase=model_pb2.MODEL_PHASE_CONVERTING, bytes_done=done, bytes_total=9)
    return step(engine, progress=progress)


def made(engine: str, *, written: bool = True) -> model_service_pb2.SerializeModelResponse:
    model = model_service_pb2.SerializedModel(model_path="/out", file_prefix="smol", written=written)
    return step(engine, model=model)


def test_it_prints_where_each_engine_has_the_model(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.expect(
        "SerializeModel", [converting("e1", 0), converting("e2", 0), converting("e1", 9), made("e1"), made("e2")]
    )
    options = [
        "--output-dir",
        "/out",
        "--skip-if-exists",
        "--engine",
        "e1",
        "--engine",
        "e2",
        "-o",
        "weight_quant=INT8",
    ]
    assert run(server, "serialize", "smol", "/models/smol", *options) == 0
    out, err = capsys.readouterr()
    assert out == "e1\t/out\tsmol\ne2\t/out\tsmol\n"
    assert err.splitlines() == [
        "smol  e1  converting",
        "smol  e2  converting",
        *["smol is written: headrace install smol /out -o file_prefix=smol"] * 2,
    ]
    (request,) = server.requests("SerializeModel")
    assert (request.config.model_name, request.config.model_path) == ("smol", "/models/smol")
    assert request.config.weight_quant == runtime_pb2.WEIGHT_QUANT_INT8
    assert (request.output_dir, request.skip_if_exists, list(request.engine_ids)) == ("/out", True, ["e1", "e2"])


def test_files_that_were_there_are_told(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.expect("SerializeModel", [made("e1", written=False)])
    assert run(server, "serialize", "smol", "/models/smol") == 0
    assert "smol is there already" in capsys.readouterr().err


def test_an_engine_that_fails_makes_the_command_fail(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.expect("SerializeModel", [made("e1"), step("e2", failure=NO_ROOM)])
    assert run(server, "serialize", "smol", "/models/smol") == 1
    out, err = capsys.readouterr()
    assert out == "e1\t/out\tsmol\n"
    assert "smol on e2: no room:" in err


def test_a_refusal_is_one_line(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.expect("SerializeModel", [Failure(grpc.StatusCode.FAILED_PRECONDITION, "no such model", "BAD_MODEL")])
    assert run(server, "serialize", "smol", "/none") == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "no such model" in err


@pytest.mark.parametrize("option", ["max_batch=8", "nonsense=1"])
def test_only_fields_that_it_has_are_taken(
    server: ScriptedServer, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(server, "serialize", "smol", "/models/smol", "-o", option) == 2
    assert option.partition("=")[0] in capsys.readouterr().err
