"""The reasons that the servers tell are those of the contract."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from headrace_proto.v1.status_pb2 import ErrorReason

ROOT = Path(__file__).parents[2]
TOLD = re.compile(r'\breason(?:: [\w\[\]]+)? ?= ?"([A-Z_]+)"|\b(?:refusal|_?unavailable)\([^"]*"([A-Z_]+)"')


@pytest.mark.parametrize(
    ("folder", "some"),
    [
        ("engine_service/headrace_engine", {"QUEUE_FULL", "SESSION_SILENT", "INVALID_FIELD"}),
        ("gateway/headrace_gateway", {"NO_ENGINE", "SESSION_SILENT", "UNKNOWN_ENGINE"}),
    ],
)
def test_every_reason_that_a_server_tells_is_in_the_contract(folder: str, some: set[str]) -> None:
    sources = [path.read_text() for path in (ROOT / folder).rglob("*.py")]
    reported = {own or passed for source in sources for own, passed in TOLD.findall(source)}
    assert some <= reported
    assert reported <= {name.removeprefix("ERROR_REASON_") for name in ErrorReason.keys()}  # noqa: SIM118
