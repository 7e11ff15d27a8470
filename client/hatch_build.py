"""Build hook: generates the wire code of `headrace.v1` from the .proto files, beside this folder or in the sdist."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GenerateWireCode(BuildHookInterface):
    """Runs protoc before a wheel or an editable install is made."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Writes headrace/v1 and adds it to the wheel."""
        if self.target_name != "wheel":
            return
        import grpc_tools
        from grpc_tools import protoc

        well_known = Path(grpc_tools.__file__).parent / "_proto"
        root = Path(self.root)
        protos = next(folder for folder in (root / "proto", root.parent / "proto") if folder.is_dir())
        outputs = [f"--{kind}_out={root}" for kind in ("python", "pyi", "grpc_python")]
        files = sorted(str(path) for path in (protos / "headrace" / "v1").glob("*.proto"))
        if protoc.main(["protoc", f"-I{protos}", f"-I{well_known}", *outputs, *files]) != 0:
            raise RuntimeError(f"protoc failed on {protos}")
        (root / "headrace" / "v1" / "__init__.py").write_text(
            '"""The wire contract, generated from proto/headrace/v1."""\n'
        )
        build_data["artifacts"].append("headrace/v1/*")
