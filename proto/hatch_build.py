"""Build hook: generates the wire code of `headrace_proto.v1` from the .proto files beside it."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "headrace_proto.v1"


class GenerateWireCode(BuildHookInterface):
    """Runs protoc before a wheel or an editable install is made."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write headrace_proto/v1 and add it to the wheel."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        target = root.joinpath(*PACKAGE.split("."))
        target.mkdir(exist_ok=True)
        with TemporaryDirectory() as made:
            _run_protoc(root, made)
            for file in (Path(made) / "headrace" / "v1").iterdir():
                (target / file.name).write_text(_in_package(file.read_text()))
        (target / "__init__.py").write_text('"""The wire contract, generated from headrace/v1/*.proto."""\n')
        build_data["artifacts"].append("headrace_proto/v1/*")


def _run_protoc(root: Path, target: str) -> None:
    import grpc_tools
    from grpc_tools import protoc

    well_known = Path(grpc_tools.__file__).parent / "_proto"
    outputs = [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
    files = sorted(str(path) for path in (root / "headrace" / "v1").glob("*.proto"))
    if protoc.main(["protoc", f"-I{root}", f"-I{well_known}", *outputs, *files]) != 0:
        raise RuntimeError(f"protoc failed on {root}")


def _in_package(code: str) -> str:
    """Rename the Python modules, which protoc names after the proto package; the names on the wire stay."""
    code = re.sub(r"^from headrace\.v1 import ", f"from {PACKAGE} import ", code, flags=re.MULTILINE)
    return code.replace("(DESCRIPTOR, 'headrace.v1.", f"(DESCRIPTOR, '{PACKAGE}.")
