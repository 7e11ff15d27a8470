"""Finding a library, comparing its ABI, and taking addresses of tensors."""

import _ctypes
import ctypes
import shutil
from pathlib import Path

import headrace_engine
import pytest
import torch
from headrace_engine.environment import NATIVE_VARIABLE
from headrace_engine.native import Dtype, Library, NativeUnavailable, abi, dtype_of, load, pointer


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that libraries are taken from."""
    monkeypatch.setenv(NATIVE_VARIABLE, str(tmp_path))
    return tmp_path


class RmsNormOfAnotherVersion(ctypes.Structure):
    """CoreRmsNorm with a narrower number of rows and without eps."""

    _fields_ = (
        *abi.RmsNorm._fields_[:5],
        ("rows", ctypes.c_int32),
        *abi.RmsNorm._fields_[6:7],
        abi.RmsNorm._fields_[8],
    )


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
    with pytest.raises(NativeUnavailable, match="is no library of the native core"):
        load("cpu")


@pytest.mark.parametrize("library", ["cpu", "sim"])
def test_a_library_of_another_abi_is_refused_with_differences(
    library: Library, libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (libraries / f"libcore_{library}.so").is_file():
        pytest.skip(f"core_{library} was not built")
    monkeypatch.setenv(NATIVE_VARIABLE, str(libraries))
    monkeypatch.setitem(abi.RECORDS, "CoreRmsNorm", RmsNormOfAnotherVersion)
    with pytest.raises(NativeUnavailable) as caught:
        load(library)
    message = str(caught.value)
    assert "CoreRmsNorm.rows is (40, 8) in the library and (40, 4) here" in message
    assert "CoreRmsNorm.eps is (56, 4) in the library and missing here" in message
    assert "CoreRmsNorm.hidden" not in message


def test_a_constant_that_one_side_lacks_is_a_difference() -> None:
    here, there = {"CORE_OK": (0, 0), "CORE_NEW": (9, 0)}, {"CORE_OK": (0, 0), "CORE_OLD": (7, 0)}
    assert abi.abi_differences(here, there) == [
        "CORE_NEW is missing in the library and (9, 0) here",
        "CORE_OLD is (7, 0) in the library and missing here",
    ]


@pytest.mark.parametrize(
    ("torch_dtype", "dtype"),
    [(torch.float32, Dtype.FLOAT32), (torch.bfloat16, Dtype.BFLOAT16), (torch.float16, Dtype.FLOAT16)],
)
def test_the_address_of_a_tensor_is_taken_as_it_is(torch_dtype: torch.dtype, dtype: Dtype) -> None:
    tensor = torch.zeros(3, 5, dtype=torch_dtype)
    assert dtype_of(tensor) is dtype
    assert pointer(tensor, dtype, "cpu") == tensor.data_ptr()


def test_a_tensor_that_an_op_would_misread_is_refused() -> None:
    tensor = torch.zeros(4, 4)
    with pytest.raises(ValueError, match=r"is torch\.float32, not bfloat16"):
        pointer(tensor, Dtype.BFLOAT16, "cpu")
    with pytest.raises(ValueError, match="is on cpu, not on cuda"):
        pointer(tensor, Dtype.FLOAT32, "cuda")
    with pytest.raises(ValueError, match="not contiguous"):
        pointer(tensor.t()[:2], Dtype.FLOAT32, "cpu")
    with pytest.raises(ValueError, match=r"dtype torch\.int64 is not one of float32, bfloat16, float16"):
        dtype_of(torch.zeros(1, dtype=torch.int64))
