"""What nvcc makes of the kernels: checked where nvcc is, no GPU needed."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from headrace_engine.native import FOLDER_VARIABLE, Code, Dtype, NativeError, load
from native.build import HAS_NVCC, NVCC, ROOT, cmake, require, run

pytestmark = pytest.mark.skipif(not HAS_NVCC, reason="no nvcc")

RESOURCES = re.compile(
    r"Function properties for (?P<kernel>\S+)\s+"
    r"(?P<frame>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
)


def compile_norm(output: Path, *options: str) -> str:
    """Compiles the norm kernels for sm_90a by themselves; returns what nvcc printed."""
    common = ("-std=c++17", "-O3", "-I", ROOT / "csrc", "-arch=sm_90a", ROOT / "csrc" / "cuda" / "norm.cu")
    return require(NVCC, *common, *options, "-o", output)


def test_norm_kernels_keep_everything_in_registers(tmp_path: Path) -> None:
    """Three dtypes: three kernels that keep the row, two that stream it."""
    report = compile_norm(tmp_path / "norm.cubin", "--cubin", "-Xptxas=-v")
    found = [match.groupdict() for match in RESOURCES.finditer(report) if "rms_norm" in match["kernel"]]
    assert len(found) == 3 * (3 + 2)
    assert [k for k in found if (k["frame"], k["stores"], k["loads"]) != ("0", "0", "0")] == []


def test_packed_norm_kernels_move_16_bytes_at_a_time(tmp_path: Path) -> None:
    compile_norm(tmp_path / "norm.ptx", "--ptx")
    kernels = re.split(r"\.entry ", (tmp_path / "norm.ptx").read_text())[1:]
    packed = [kernel for kernel in kernels if re.match(r"\S*rms_norm_(kept|streamed)I\S+Li[48]E", kernel)]
    assert len(packed) == 3 * (3 + 1)
    for kernel in packed:
        accesses = re.findall(r"\b(?:ld|st)\.global\S*", kernel)
        assert accesses
        assert {access.split(".")[2] for access in accesses} == {"v4"}


def mma_counts(tmp_path: Path, source: str) -> dict[tuple[str, int], int]:
    """Products of tensor cores in the PTX of an attention kernel, by storage and head dimension."""
    common = ("-std=c++17", "-O3", "-I", ROOT / "csrc", "-arch=sm_90a", ROOT / "csrc" / "cuda" / source)
    require(NVCC, *common, "--ptx", "-o", tmp_path / "kernels.ptx")
    counts = {}
    for kernel in re.split(r"\.entry ", (tmp_path / "kernels.ptx").read_text())[1:]:
        if found := re.match(r"\S*attention_kernelINS_\d(\w+?)KvELi(\d+)E", kernel):
            counts[found[1], int(found[2])] = kernel.count("mma.sync")
    return counts


HEAD_DIMS = (64, 80, 96, 128, 256)
STORAGES = ("Bf16", "Int8", "Uint4")


def test_decode_multiplies_on_tensor_cores(tmp_path: Path) -> None:
    """Sixteen tokens: two products for each 16 entries of keys, one for each 16 of values."""
    expected = {(storage, dim): 3 * dim // 16 for storage in STORAGES for dim in HEAD_DIMS}
    assert mma_counts(tmp_path, "attention_decode.cu") == expected


def test_prefill_multiplies_on_tensor_cores(tmp_path: Path) -> None:
    """A tile of 64 keys, 32 where heads are long: a product for each 8 keys and 16 entries, of keys and of values."""
    tiles = {dim: 64 if dim <= 128 else 32 for dim in HEAD_DIMS}
    expected = {(storage, dim): 2 * tiles[dim] * dim // 128 for storage in STORAGES for dim in HEAD_DIMS}
    assert mma_counts(tmp_path, "attention_prefill.cu") == expected


def test_products_with_codes_multiply_on_tensor_cores(tmp_path: Path) -> None:
    """A step of 64 outputs and 64 inputs: 16 products for each eight rows, and 4 more where sums of x are needed."""
    common = ("-std=c++17", "-O3", "-I", ROOT / "csrc", "-arch=sm_90a", ROOT / "csrc" / "cuda" / "coded_linear.cu")
    require(NVCC, *common, "--ptx", "-o", tmp_path / "coded.ptx")
    counts = {}
    for kernel in re.split(r"\.entry ", (tmp_path / "coded.ptx").read_text())[1:]:
        if found := re.match(r"\S*coded_linear_kernelI\d+(\w+?)Li([48])ELi(\d)ELb([01])E", kernel):
            dtype, bits, eights, offsets = found.groups()
            counts[dtype, bits, int(eights), int(offsets)] = kernel.count("mma.sync")
    assert len(counts) == 2 * 2 * 3 * 2
    assert counts == {key: key[2] * (16 + 4 * key[3]) for key in counts}


@pytest.fixture(scope="module")
def hopper_build() -> Path:
    """Folder of core_cuda, built for sm_90a. Warnings are errors, and kernels that spill registers warn."""
    strict = ("-DCMAKE_COMPILE_WARNING_AS_ERROR=ON", "-DCMAKE_CUDA_FLAGS=-Xptxas=--warn-on-spills,--warning-as-error")
    options = ("-DCORE_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=90a-real", *strict)
    return cmake("native-hopper", "csrc", *options, targets=("core_cuda",))


def test_all_kernels_compile_without_warnings_and_spills(hopper_build: Path) -> None:
    assert (hopper_build / "libcore_cuda.so").is_file()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_launch_is_an_error_and_no_crash(hopper_build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(hopper_build))
    native = load("cuda")
    with pytest.raises(NativeError, match=r"^rms_norm: .*driver.* \(device error \d+\)$") as caught:
        native.rms_norm(out=4096, x=4096, weight=4096, rows=1, hidden=64, eps=1e-5, dtype=Dtype.FLOAT32)
    assert (caught.value.code, caught.value.field) == (Code.DEVICE_ERROR, "")


@pytest.mark.parametrize(("choice", "succeeds"), [("AUTO", True), ("ON", False)])
def test_an_nvcc_that_is_too_old_is_left_out_or_refused(tmp_path: Path, choice: str, succeeds: bool) -> None:
    old_nvcc = tmp_path / "nvcc"
    real = shutil.which(NVCC)
    old_nvcc.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "release 11.8, V11.8.89" || exec {real} "$@"\n')
    old_nvcc.chmod(0o755)
    result = run(
        "cmake", "-S", ROOT / "csrc", "-B", tmp_path / "build", f"-DCORE_CUDA={choice}", env={"CUDACXX": str(old_nvcc)}
    )
    assert (result.returncode == 0) is succeeds
    assert "nvcc 11.8 is older than 12.8" in " ".join(result.stdout.split())
