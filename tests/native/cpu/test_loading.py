"""Finding a library, and comparing its headers with those of this package."""

import _ctypes
import shutil
from pathlib import Path

import headrace_engine
import pytest
from headrace_engine.environment import NATIVE_VARIABLE
from headrace_engine.native import Library, NativeUnavailable, library, load


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that libraries are taken from."""
    monkeypatch.setenv(NATIVE_VARIABLE, str(tmp_path))
    return tmp_path


def test_a_missing_library_is_named_with_its_path(folder: Path) -> None:
    with pytest.raises(NativeUnavailable, match=f"no libcore_cuda.so in {folder} .*{NATIVE_VARIABLE}"):
        load("cuda")


def test_the_library_in_the_package_is_the_default(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(NATIVE_VARIABLE, raising=False)
    monkeypatch.setattr(headrace_engine, "__path__", [str(tmp_path / "sources"), str(tmp_path / "installed")])
    with pytest.raises(NativeUnavailable, match=f"build it, and set {NATIVE_VARIABLE}"):
        load("cpu")
    (tmp_path / "installed" / "lib").mkdir(parents=True)
    shutil.copy(libraries / "libcore_cpu.so", tmp_path / "installed" / "lib")
    assert load("cpu").library == "cpu"


def test_a_damaged_library_is_refused(folder: Path) -> None:
    (folder / "libcore_cpu.so").write_bytes(b"\x7fELF but no more")
    with pytest.raises(NativeUnavailable, match=r"libcore_cpu\.so cannot be loaded: "):
        load("cpu")


def test_a_library_of_something_else_is_refused(folder: Path) -> None:
    shutil.copy(_ctypes.__file__, folder / "libcore_cpu.so")
    with pytest.raises(NativeUnavailable, match="is not a native library of this package"):
        load("cpu")


@pytest.mark.parametrize("name", ["cpu", "sim"])
def test_a_library_of_other_headers_is_refused(name: Library, libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (libraries / f"libcore_{name}.so").is_file():
        pytest.skip(f"core_{name} was not built")
    monkeypatch.setenv(NATIVE_VARIABLE, str(libraries))
    monkeypatch.setattr(library, "DIGEST", "0123456789abcdef")
    with pytest.raises(NativeUnavailable, match=r"other headers: build it again; .* [0-9a-f]{16}, .* 0123456789abcdef"):
        load(name)
