"""What importing the package brings, and what comes only when it is used."""

from __future__ import annotations

import subprocess
import sys

import headrace
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
