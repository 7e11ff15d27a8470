"""What abi.py makes of headers: the Python module, and what the compiler checks of it."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.native import abi
from native.build import ROOT, run

CSRC = ROOT / "csrc"


@pytest.fixture(scope="module")
def maker() -> Any:
    spec = importlib.util.spec_from_file_location("csrc_abi", CSRC / "abi.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(maker: Any, header: str) -> dict[str, Any]:
    """The names of the module that is made of a header's text."""
    names: dict[str, Any] = {}
    body = maker.module_of({"one.h": maker.read(" ".join(header.split()))}, maker.descriptions(header))
    exec(maker.head_of("0") + body, names)
    return names


def test_the_module_here_is_that_of_the_headers_here(tmp_path: Path) -> None:
    out = tmp_path / "abi.py"
    subprocess.run([sys.executable, CSRC / "abi.py", "g++", out], check=True)
    assert out.read_text() == Path(str(abi.__file__)).read_text()


def test_structs_enums_and_functions_become_those_of_ctypes(maker: Any) -> None:
    names = made(
        maker,
        """
        typedef int32_t CoreStatus;
        typedef enum CoreRowKind { CORE_ROW_KIND_A = 1, CORE_ROW_KIND_B = 4, } CoreRowKind;
        typedef enum CoreLimit { CORE_MOST = 20, } CoreLimit;
        typedef struct CoreThing CoreThing;
        typedef struct CorePart { const float* at; double size; } CorePart;
        typedef struct CoreWhole { CorePart parts[2]; float values[16]; CorePart* other; uint64_t seed; } CoreWhole;
        __attribute__((visibility("default"))) CoreStatus core_make(const CoreWhole* args, CoreThing** thing);
        __attribute__((visibility("default"))) const char* core_text(void);
        """,
    )
    assert [(kind.name, kind.value) for kind in names["RowKind"]] == [("A", 1), ("B", 4)]
    assert names["Limit"].MOST == 20
    whole, part = names["Whole"], names["Part"]
    assert ctypes.sizeof(whole) == 2 * ctypes.sizeof(part) + 16 * 4 + 8 + 8
    assert whole(other=4096, seed=2**64 - 1).other == 4096
    assert names["FUNCTIONS"] == {
        "one.h": {
            "core_make": (ctypes.c_int32, (ctypes.POINTER(whole), ctypes.POINTER(ctypes.c_void_p))),
            "core_text": (ctypes.c_char_p, ()),
        }
    }


def test_comments_above_enums_and_structs_are_docstrings(maker: Any) -> None:
    names = made(
        maker,
        "/* Codes of a row, 0 ... 15.\n * Zero is the lowest. */\n"
        "typedef enum CoreCodes { CORE_MOST = 15, } CoreCodes;\n"
        "/* Not of what follows. */\n\ntypedef struct CorePart { double size; } CorePart;\n"
        f"/* {'long ' * 30}*/\ntypedef struct CoreWhole {{ int32_t size; }} CoreWhole;\n",
    )
    assert names["Codes"].__doc__ == "CoreCodes: Codes of a row, 0 ... 15."
    assert names["Part"].__doc__ == "CorePart."
    assert names["Whole"].__doc__.split() == ["CoreWhole:", *["long"] * 29, "long."]


def test_a_field_that_there_is_not_cannot_be_set() -> None:
    with pytest.raises(AttributeError, match="top_q"):
        abi.Sampling(top_q=1)
    row = abi.Sampling()
    with pytest.raises(AttributeError, match="minp"):
        row.minp = 0.5


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("typedef struct CoreOdd { long size; } CoreOdd;", "size is of the unknown type long"),
        ("typedef struct CoreOdd { int32_t bits : 3; } CoreOdd;", "not a type and a name: int32_t bits : 3"),
        ("typedef struct CoreOdd { struct { int32_t a; } in; } CoreOdd;", "CoreOdd"),
        ("typedef enum CoreOdd { CORE_A, CORE_B = 2, } CoreOdd;", "not a name and a number: CORE_A of CoreOdd"),
        ("CoreStatus core_hidden(int32_t count);", "no enum, struct or function .*core_hidden"),
    ],
)
def test_what_is_declared_in_another_way_is_refused(maker: Any, header: str, message: str) -> None:
    with pytest.raises(maker.Unreadable, match=message):
        made(maker, header)


@pytest.mark.parametrize(("old", "new"), [("double min_p;", ""), ("double top_p;", "float top_p;")])
def test_the_compiler_refuses_structs_that_lie_otherwise(tmp_path: Path, old: str, new: str) -> None:
    """The checks are made of one version of the headers, and compiled with another."""
    source, headers = tmp_path / "abi.cpp", tmp_path / "csrc"
    subprocess.run([sys.executable, CSRC / "abi.py", "g++", tmp_path / "abi.py", source], check=True)
    headers.mkdir()
    for header in CSRC.glob("core*.h"):
        text = header.read_text()
        (headers / header.name).write_text(text.replace(old, new, 1) if header.name == "core_sampling.h" else text)
    compile_ = ("g++", "-std=c++20", "-fsyntax-only", source, "-I")
    assert run(*compile_, CSRC).returncode == 0
    assert "static assertion failed" in run(*compile_, headers).stdout
