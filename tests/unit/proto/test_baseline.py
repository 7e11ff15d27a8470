"""The check of the wire contract finds what would break its users."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROTO = Path(__file__).parents[3] / "proto"
BUF = Path(sys.executable).with_name("buf")


def check(tmp_path: Path, file: str, old: str, new: str) -> tuple[int, str]:
    """What the check says after a text of the contract was replaced, which it has once."""
    shutil.copytree(PROTO / "headrace", tmp_path / "headrace")
    shutil.copy(PROTO / "buf.yaml", tmp_path)
    changed = tmp_path / "headrace" / "v1" / file
    text = changed.read_text()
    assert text.count(old) == 1
    changed.write_text(text.replace(old, new))
    command = [BUF, "breaking", "--against", PROTO / "baseline.binpb"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout


UNLOAD = "  rpc UnloadAdapter(UnloadAdapterRequest) returns (UnloadAdapterResponse);\n"


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("model_service.proto", UNLOAD, "", 'RPC "UnloadAdapter"'),
        ("model_service.proto", "service ModelService", "service Models", 'service "ModelService" was deleted'),
        (
            "generation.proto",
            "optional uint32 num_beams = ",
            "optional uint32 beams = ",
            'changed name from "num_beams"',
        ),
        ("session.proto", "  uint64 count = 7;\n", "", 'with name "count"'),
        ("session.proto", "  uint64 count = 7;\n", "  string count = 7;\n", "changed type"),
        ("status.proto", "  ERROR_REASON_RESULTS_FULL = ", "  ERROR_REASON_TOO_MANY = ", "RESULTS_FULL"),
    ],
)
def test_a_change_that_breaks_users_is_found(tmp_path: Path, file: str, old: str, new: str, words: str) -> None:
    code, found = check(tmp_path, file, old, new)
    assert code == 100
    assert words in found


def test_an_addition_breaks_nobody(tmp_path: Path) -> None:
    new = "  uint64 count = 7;\n  // One more.\n  uint64 more = 1000;\n"
    assert check(tmp_path, "session.proto", "  uint64 count = 7;\n", new) == (0, "")
