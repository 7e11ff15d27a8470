"""What the report of ptxas becomes, and that it knows how the kernels are launched."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from native.build import ROOT, build_native, require
from native.conftest import need_sim
from native.mutants.build import Rebuild

from bench.gpu import registers
from bench.gpu.registers import LAUNCHES, Kernel

SOURCES = sorted((ROOT / "csrc" / "cuda").rglob("*.cu"))
BOUNDS = re.compile(r"__global__ void __launch_bounds__\((k\w+)(?:\s*\*\s*(k\w+))?[^)]*\)\s+(\w+)\(", re.DOTALL)
CONSTANT = re.compile(r"constexpr int (k\w+) = (\d+);")
REPORT = """ptxas info    : Compiling entry function '_ZN4core12_GLOBAL__N_113rms_norm_keptI6__halfLi8ELi2EEEv11CoreRmsNorm' for '{card}'
ptxas info    : Function properties for _ZN4core12_GLOBAL__N_113rms_norm_keptI6__halfLi8ELi2EEEv11CoreRmsNorm
    {stack} bytes stack frame, {stores} bytes spill stores, 0 bytes spill loads
ptxas info    : Used {used} registers, used 1 barriers, 128 bytes smem
"""  # noqa: E501


def report(card: str = "sm_90a", used: int = 40, stack: int = 0, stores: int = 0) -> str:
    return REPORT.format(card=card, used=used, stack=stack, stores=stores)


def test_a_kernel_is_read_with_its_name_as_it_is_written() -> None:
    (kernel,) = registers.read(report(stores=4))
    assert kernel == Kernel("rms_norm_kept<float16, 8, 2>", "sm_90a", 40, 128, 4)


@pytest.mark.parametrize(
    ("card", "used", "together"),
    [
        ("sm_90a", 32, (4, "threads")),
        ("sm_90a", 33, (3, "registers")),
        ("sm_80", 24, (4, "threads")),
        ("sm_120", 24, (3, "threads")),
    ],
)
def test_blocks_that_fit_are_those_of_cudas_rules(card: str, used: int, together: tuple[int, str]) -> None:
    """512 threads: 16 warps, whose registers are given in units of 256."""
    (kernel,) = registers.read(report(card, used))
    assert kernel.together() == together


def test_shared_memory_may_be_the_limit() -> None:
    kernel = Kernel("prefill_attention_kernel<Bf16Kv, 128>", "sm_120", 128, 0, 0)
    assert kernel.shared == 54_272
    assert kernel.together() == (1, "shared memory")


@pytest.mark.parametrize("beside", [{"stack": 8}, {"stores": 4}])
def test_memory_beside_registers_is_an_error(
    beside: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report").write_text(report() + report("sm_80", **beside))
    monkeypatch.setattr("sys.argv", ["registers", "--no-write", str(tmp_path / "report")])
    assert registers.main() == 1
    assert "memory beside registers in rms_norm_kept<float16, 8, 2> for sm_80\n" in capsys.readouterr().err


def test_the_page_has_a_column_for_each_card() -> None:
    page = registers.page(registers.read(report() + report("sm_120", 63)))
    assert "| kernel | threads | shared bytes | sm_90a (H100) | sm_120 (RTX 50) |" in page
    assert "| `rms_norm_kept<float16, 8, 2>` | 512 | 128 | 40 r, 3 (r) | 63 r, 2 (r) |" in page


def test_kernels_are_launched_with_the_threads_of_the_report() -> None:
    """By the bounds in the sources; their constants stand there, or in headers beside them or above."""
    bounds = {}
    for source in SOURCES:
        files = (*source.parents[1].glob("*.h"), *source.parent.glob("*.h"), source)
        constants = {name: int(value) for file in files for name, value in CONSTANT.findall(file.read_text())}
        constants["kLinearThreads"] = constants["kWarpSize"] * constants.get("kWarps", 0)
        text = source.read_text()
        for first, second, name in BOUNDS.findall(text):
            bounds[name] = constants[first] * (constants[second] if second else 1)
    assert bounds == {name: launch.threads for name, launch in LAUNCHES.items()}


def test_shared_memory_of_launches_is_what_the_sources_say(tmp_path: Path) -> None:
    """The compiler compares the report's numbers with the constants of the headers."""
    need_sim()
    claims = []
    for dim in (64, 80, 96, 128, 192, 256):
        prefill = Kernel(f"prefill_attention_kernel<Bf16Kv, {dim}>", "sm_90a", 0, 0, 0).shared
        claims.append(f"static_assert(core::prefill::Tiles<{dim}>::kBytes == {prefill});")
    for bits in (4, 8):
        for eights in (1, 2, 4):
            name = f"quantized_linear_kernel<float16, {bits}, {eights}, true>"
            shape, size = f"core::Shape<{bits}, {eights}>", Kernel(name, "sm_90a", 0, 0, 0).shared
            claims.append(f"static_assert({shape}::kStages * {shape}::kStageBytes == {size});")
    source = tmp_path / "claims.cu"
    headers = ("cuda/attention/prefill_tile.h", "cuda/quantized/stage.h")
    source.write_text("\n".join([*(f'#include "{header}"' for header in headers), *claims]))
    require("sh", "-c", Rebuild(build_native()).compiling(source))
    source.write_text(source.read_text() + "\nstatic_assert(core::prefill::Tiles<64>::kBytes == 1);")
    with pytest.raises(pytest.fail.Exception, match="static assertion failed"):
        require("sh", "-c", Rebuild(build_native()).compiling(source))
