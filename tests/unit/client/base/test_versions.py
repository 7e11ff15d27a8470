"""BC-190: what the package metadata allows is what the generated code runs on."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import headrace
from headrace_proto.v1 import request_service_pb2


def requirement(name: str) -> str:
    """The version range of a dependency, without blanks."""
    lines = importlib.metadata.requires("headrace") or ()
    return next(line[len(name) :] for line in lines if re.match(rf"{name}[<>=]", line))


def version(text: str) -> tuple[int, ...]:
    """A version that can be compared."""
    return tuple(int(part) for part in text.split("."))


def test_bc190_the_lowest_protobuf_runs_the_generated_code() -> None:
    """Protobuf runs code of its own major version and of the one before."""
    source = Path(request_service_pb2.__file__).read_text()
    made_by = tuple(int(part) for part in re.findall(r"^ {4}(\d+),$", source, re.MULTILINE)[:3])
    allowed = requirement("protobuf")
    least = re.search(r">=([\d.]+)", allowed)
    below = re.search(r"<(\d+)", allowed)
    assert least is not None
    assert below is not None
    assert version(least[1]) >= made_by
    assert int(below[1]) == made_by[0] + 2


def test_bc190_the_lowest_grpcio_is_the_one_generated_for() -> None:
    source = Path(request_service_pb2.__file__.replace("_pb2.py", "_pb2_grpc.py")).read_text()
    made_by = re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", source)
    least = re.search(r">=([\d.]+)", requirement("grpcio"))
    assert made_by is not None
    assert least is not None
    assert version(least[1]) >= version(made_by[1])[: len(version(least[1]))]


def test_the_version_is_that_of_the_distribution() -> None:
    assert headrace.__version__ == importlib.metadata.version("headrace")
