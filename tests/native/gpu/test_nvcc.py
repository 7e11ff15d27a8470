"""What nvcc makes of the kernels: checked where nvcc is, no GPU needed."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from headrace_engine.environment import NATIVE_VARIABLE
from headrace_engine.native import Code, Dtype, NativeError, load
from headrace_engine.native.abi import RmsNorm
from native.build import HAS_NVCC, NVCC, ROOT, cmake, run
from native.machine_code import HMMA, LOAD_LOCAL, STORE_LOCAL, opcodes

pytestmark = pytest.mark.skipif(not HAS_NVCC, reason="no nvcc")

RESOURCES = re.compile(
    r"Function properties for (?P<kernel>\S+)\s+"
    r"(?P<frame>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
)


@pytest.fixture(scope="module")
def hopper_build() -> Path:
    """Folder of core_cuda, built for sm_90a, with what nvcc makes of each source on the way in `kept`.

    Warnings are errors, and kernels that spill registers warn.
    """
    kept = ROOT / "build" / "native-hopper" / "kept"  # Named in full, since CMake tries nvcc in another folder first.
    kept.mkdir(parents=True, exist_ok=True)
    flags = f"-DCMAKE_CUDA_FLAGS=-Xptxas=--warn-on-spills,--warning-as-error --keep --keep-dir {kept}"
    options = ("-DCORE_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=90a-real", "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON")
    return cmake("native-hopper", "csrc", *options, flags, targets=("core_cuda",))


def ptx(build: Path, source: str) -> list[str]:
    """The PTX of each kernel of a source, from its name on."""
    return re.split(r"\.entry ", (build / "kept" / f"{source}.ptx").read_text())[1:]


def test_all_kernels_keep_everything_in_registers(hopper_build: Path) -> None:
    """The report that the build keeps names every kernel, and none has a stack frame, which is local memory."""
    report = (hopper_build / "core_cuda.ptxas.txt").read_text()
    found = [match.groupdict() for match in RESOURCES.finditer(report)]
    sources = (ROOT / "csrc" / "cuda").rglob("*.cu")
    built = {name for source in sources for name in opcodes(hopper_build / "kept" / f"{source.stem}.cubin")}
    assert {each["kernel"] for each in found} == built
    assert [k for k in found if (k["frame"], k["stores"], k["loads"]) != ("0", "0", "0")] == []


def test_machine_code_has_tensor_cores_and_no_local_memory(hopper_build: Path) -> None:
    """Products of attention and with codes; each kernel of those sources that has any in its PTX has them as HMMA."""
    for source in ("attention_decode", "attention_prefill", "quantized_linear"):
        code = opcodes(hopper_build / "kept" / f"{source}.cubin")
        multiply = {re.split(r"\W", kernel)[0] for kernel in ptx(hopper_build, source) if "mma.sync" in kernel}
        assert len(multiply) >= 12
        assert multiply == {name for name, counts in code.items() if counts[HMMA]}
        assert [name for name, counts in code.items() if counts[LOAD_LOCAL] or counts[STORE_LOCAL]] == []


def test_packed_norm_kernels_move_16_bytes_at_a_time(hopper_build: Path) -> None:
    packed = [
        kernel for kernel in ptx(hopper_build, "norm") if re.match(r"\S*rms_norm_(kept|streamed)I\S+Li[48]E", kernel)
    ]
    assert len(packed) == 3 * (3 + 1)
    for kernel in packed:
        accesses = re.findall(r"\b(?:ld|st)\.global\S*", kernel)
        assert accesses
        assert {access.split(".")[2] for access in accesses} == {"v4"}


def mma_counts(build: Path, source: str) -> dict[tuple[str, int], int]:
    """Products of tensor cores in the PTX of an attention kernel, by storage and head dimension."""
    counts = {}
    for kernel in ptx(build, source):
        if found := re.match(r"\S*attention_kernelINS_\d(\w+?)KvELi(\d+)E", kernel):
            counts[found[1], int(found[2])] = kernel.count("mma.sync")
    return counts


HEAD_DIMS = (64, 80, 96, 128, 192, 256)
STORAGES = ("Bf16", "Int8", "Uint4")


def test_decode_multiplies_on_tensor_cores(hopper_build: Path) -> None:
    """Sixteen tokens: two products for each 16 entries of keys, one for each 16 of values."""
    expected = {(storage, dim): 3 * dim // 16 for storage in STORAGES for dim in HEAD_DIMS}
    assert mma_counts(hopper_build, "attention_decode") == expected


def test_prefill_multiplies_on_tensor_cores(hopper_build: Path) -> None:
    """A tile of 64 keys, 32 where heads are long: a product for each 8 keys and 16 entries, of keys and of values."""
    tiles = {dim: 64 if dim <= 128 else 32 for dim in HEAD_DIMS}
    expected = {(storage, dim): 2 * tiles[dim] * dim // 128 for storage in STORAGES for dim in HEAD_DIMS}
    assert mma_counts(hopper_build, "attention_prefill") == expected


def test_products_with_codes_multiply_on_tensor_cores(hopper_build: Path) -> None:
    """A step of 64 outputs and 64 inputs: 16 products for each eight rows, and 4 more where sums of x are needed."""
    counts = {}
    for kernel in ptx(hopper_build, "quantized_linear"):
        if found := re.match(r"\S*quantized_linear_kernelI\d+(\w+?)Li([48])ELi(\d)ELb([01])E", kernel):
            dtype, bits, eights, offsets = found.groups()
            counts[dtype, bits, int(eights), int(offsets)] = kernel.count("mma.sync")
    assert len(counts) == 2 * 2 * 3 * 2
    assert counts == {key: key[2] * (16 + 4 * key[3]) for key in counts}


def test_all_kernels_compile_without_warnings_and_spills(hopper_build: Path) -> None:
    assert (hopper_build / "libcore_cuda.so").is_file()


def test_wheels_get_both_libraries(hopper_build: Path) -> None:
    """What is installed becomes part of the wheel."""
    installed = (hopper_build / "cmake_install.cmake").read_text()
    assert [name for name in ("cpu", "cuda") if f"libcore_{name}.so" not in installed] == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_launch_is_an_error_and_no_crash(hopper_build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NATIVE_VARIABLE, str(hopper_build))
    native = load("cuda")
    with pytest.raises(NativeError, match=r"^rms_norm: .*driver.* \(device error \d+\)$") as caught:
        native.launch("rms_norm", RmsNorm(4096, None, 4096, 4096, None, 1, 64, 1e-5, Dtype.FLOAT32))
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
