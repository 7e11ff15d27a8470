"""The four distributions, each built as an sdist, and from the sdist alone as a wheel."""

import re
from pathlib import Path

import pytest
from native.build import BUILD_LIMIT
from support.deployment.distributions import FOLDERS, ROOT, Distribution, build, build_environment, call

# The first test waits for all builds, on a busy machine for longer than a test may take.
pytestmark = [pytest.mark.packaging, pytest.mark.timeout(BUILD_LIMIT)]

PACKAGES = {
    "proto": "headrace_proto",
    "client": "headrace",
    "gateway": "headrace_gateway",
    "engine_service": "headrace_engine",
}

PACKED = """
import numpy
from headrace_engine.native import Cpu, Format, Matrix, MatrixRows, Memory, PackedMatrix, load
native = load("cpu")
packed = PackedMatrix(native, Matrix(outputs=1, inputs=4, format=Format.FLOAT32), Memory(native, 4096))
packed.pack(Cpu(native, threads=1), MatrixRows(numpy.array([[1, 2, 3, 4]], dtype=numpy.float32)))
print(*packed.row(0))
"""


@pytest.fixture(scope="session")
def python() -> Path:
    """An interpreter that has what builds need, and none of the repository."""
    return build_environment()


@pytest.fixture(scope="session")
def built(python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Distribution]:
    """Every distribution, by folder."""
    return {folder: build(folder, python, tmp_path_factory.mktemp(folder)) for folder in FOLDERS}


def version_of(folder: str, package: str) -> str:
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / folder / package / "__init__.py").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(("folder", "package"), PACKAGES.items())
def test_a_wheel_says_its_version_and_carries_its_package_alone(
    built: dict[str, Distribution], folder: str, package: str
) -> None:
    distribution = built[folder]
    assert distribution.metadata["Version"] == version_of(folder, package)
    assert distribution.metadata["License-Expression"] == "Apache-2.0"
    assert {name.partition("/")[0] for name in distribution.files} == {
        package,
        distribution.wheel.name.partition("-py3-")[0] + ".dist-info",
    }
    assert not [name for name in distribution.files | distribution.sources if "__pycache__" in name]


def test_every_python_file_of_a_package_is_in_its_wheel(built: dict[str, Distribution]) -> None:
    for folder, package in PACKAGES.items():
        files = {str(path.relative_to(ROOT / folder)) for path in (ROOT / folder / package).rglob("*.py")}
        assert files - built[folder].files == set()


def test_the_wheel_carries_wire_code_and_the_sdist_the_protos(built: dict[str, Distribution]) -> None:
    proto = built["proto"]
    protos = {path.stem for path in (ROOT / "proto" / "headrace" / "v1").glob("*.proto")}
    assert len(protos) > 5
    assert {f"headrace/v1/{name}.proto" for name in protos} <= proto.sources
    for name in protos:
        assert {f"headrace_proto/v1/{name}_pb2.py", f"headrace_proto/v1/{name}_pb2.pyi"} <= proto.files
    assert not [name for name in proto.sources if name.startswith("headrace_proto/v1/")]
    assert "headrace_proto/py.typed" in proto.files
    assert "headrace/py.typed" in built["client"].files


def test_client_and_contract_need_grpcio_and_protobuf_alone(built: dict[str, Distribution]) -> None:
    needs = [*built["client"].requirements, *built["proto"].requirements]
    needed = {re.split(r"[^\w-]", need)[0] for need in needs if "extra ==" not in need}
    assert needed == {"headrace-proto", "grpcio", "protobuf"}


def test_the_wire_code_imports_with_the_compiler_s_own_protobuf(
    built: dict[str, Distribution], python: Path, tmp_path: Path
) -> None:
    """It is of the older of the two major versions that the metadata allows."""
    script = "import headrace.v1.session_pb2 as one, headrace.v1.engine_service_pb2_grpc; print(one.__file__)"
    built["proto"].unpack(tmp_path)
    printed = call(python, "-c", script, path=built["client"].unpack(tmp_path))
    assert printed.strip() == str(tmp_path / "headrace_proto" / "v1" / "session_pb2.py")


def test_the_engine_wheel_fits_every_python_and_has_the_library(built: dict[str, Distribution]) -> None:
    engine = built["engine_service"]
    assert re.fullmatch(r"headrace_engine-.+-py3-none-linux_\w+\.whl", engine.wheel.name)
    assert [name for name in engine.files if ".so" in name] == ["headrace_engine/lib/libcore_cpu.so"]
    assert {"csrc/CMakeLists.txt", "csrc/abi.py", "csrc/core.h", "LICENSE"} <= engine.sources
    assert "headrace_engine/py.typed" in engine.files


def test_the_engine_s_wheel_carries_what_is_made_of_headers(built: dict[str, Distribution]) -> None:
    engine = built["engine_service"]
    assert "headrace_engine/native/abi.py" in engine.files - engine.sources


def test_the_library_inside_the_engine_s_wheel_works(
    built: dict[str, Distribution], python: Path, tmp_path: Path
) -> None:
    built["proto"].unpack(tmp_path)
    printed = call(python, "-c", PACKED, path=built["engine_service"].unpack(tmp_path))
    assert printed.split() == ["1.0", "2.0", "3.0", "4.0"]


def test_the_client_brings_no_server_and_no_engine_the_client(built: dict[str, Distribution]) -> None:
    servers = {"headrace-gateway", "headrace-engine", "grpcio-health-checking", "grpcio-reflection", "structlog"}
    needs = {folder: [need for need in built[folder].requirements if "extra ==" not in need] for folder in PACKAGES}
    brought = {folder: {re.split(r"[^\w-]", need)[0] for need in lines} for folder, lines in needs.items()}
    assert not (brought["client"] | brought["proto"]) & servers
    assert "headrace" not in brought["engine_service"]


def test_all_need_the_contract_of_their_own_version(built: dict[str, Distribution]) -> None:
    assert len({version_of(folder, package) for folder, package in PACKAGES.items()}) == 1
    for folder in ("client", "gateway", "engine_service"):
        contract = [need for need in built[folder].requirements if need.startswith("headrace-proto")]
        assert [need.partition("==")[2] for need in contract] == [version_of("proto", "headrace_proto")]


def test_the_gateway_needs_the_client_of_its_own_version(built: dict[str, Distribution]) -> None:
    client = [need for need in built["gateway"].requirements if need.startswith("headrace==")]
    assert client == [f"headrace=={version_of('client', 'headrace')}"]


def test_the_engine_offers_its_program_and_its_transport(built: dict[str, Distribution]) -> None:
    lines = built["engine_service"].text("entry_points.txt").replace(" ", "").split()
    assert "headrace-engine=headrace_engine.service.program.main:main" in lines
    assert (
        lines[lines.index("[headrace.transports]") + 1]
        == "inprocess=headrace_engine.service.inprocess.transport:connect"
    )


def test_only_the_engine_s_extra_asks_for_cuda(built: dict[str, Distribution]) -> None:
    cuda = [need for need in built["engine_service"].requirements if "cuda" in need.lower() or "nvidia" in need.lower()]
    assert [need.endswith('extra == "cuda"') for need in cuda] == [True]
