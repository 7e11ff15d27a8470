"""What importing the package brings, and what comes only when it is used."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import headrace
import headrace_proto.v1
import pytest
from support.clocks.waiting import LIMIT


def test_every_public_name_is_there() -> None:
    for name in headrace.__all__:
        assert getattr(headrace, name).__name__ == name


def test_modules_in_the_manual_need_no_import_of_their_own() -> None:
    code = "import headrace\nheadrace.errors.AuthError, headrace.fields.GenerationFields, headrace.aio.AsyncClient"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT)


def test_a_name_that_is_none_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="'headrace' has no attribute 'Clinet'"):
        headrace.Clinet  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(headrace, "__wrapped__")


def test_wire_code_alone_does_not_bring_the_client() -> None:
    code = (
        "import sys, headrace.v1.session_pb2\nassert not {'headrace.client', 'headrace.aio', 'grpc'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT)


def test_wire_modules_of_the_client_are_those_of_the_contract() -> None:
    made = Path(headrace_proto.v1.__path__[0])
    names = [path.stem for path in [*made.glob("*_pb2.py"), *made.glob("*_service_pb2_grpc.py")]]
    assert len(names) > 10
    for name in names:
        own = importlib.import_module(f"headrace.v1.{name}")
        assert own is importlib.import_module(f"headrace_proto.v1.{name}")
        assert getattr(headrace.v1, name) is own
