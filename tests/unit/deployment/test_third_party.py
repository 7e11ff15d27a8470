"""What image builds install before our own sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from third_party import third_party

ROOT = Path(__file__).parents[3]
PROTO, GATEWAY = str(ROOT / "proto/pyproject.toml"), str(ROOT / "gateway/pyproject.toml")


def test_extras_are_those_that_are_asked_for() -> None:
    plain, traced = third_party([PROTO, GATEWAY]), third_party([PROTO, f"{GATEWAY}[otel]"])
    assert set(plain) < set(traced)
    assert {line.partition(">")[0] for line in set(traced) - set(plain)} == {
        "opentelemetry-api",
        "opentelemetry-sdk",
        "opentelemetry-exporter-otlp-proto-grpc",
    }
    assert any(line.startswith("structlog") for line in plain)
    assert [line for line in traced if line.startswith("headrace")] == []


def test_an_unknown_extra_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no extra otl"):
        third_party([f"{GATEWAY}[otl]"])
