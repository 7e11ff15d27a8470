"""The ops under AddressSanitizer and UndefinedBehaviorSanitizer, over buffers without an element to spare."""

from pathlib import Path

import pytest
from native.build import run


@pytest.mark.parametrize("program", ["norm_sim", "kv_sim", "rows_sim"])
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_ops_stay_inside_their_buffers(sanitized_programs: Path, program: str, order: str) -> None:
    result = run(sanitized_programs / program, env={"CUSIM_ORDER": order})
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.timeout(900)  # most of it for compiling four instruction sets
def test_programs_stay_in_their_buffers_on_every_isa(sanitized_programs: Path) -> None:
    result = run(sanitized_programs / "program_cpu")
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize(
    ("fault", "report"),
    [
        ("overrun_the_output", "heap-buffer-overflow"),
        ("overrun_dynamic", "use-after-poison"),
        ("overrun_an_array", "out of bounds for type"),
    ],
)
def test_a_kernel_that_leaves_its_buffer_is_reported(sanitized_programs: Path, fault: str, report: str) -> None:
    result = run(sanitized_programs / "sim_cases", fault)
    assert result.returncode != 0
    assert report in result.stdout


@pytest.mark.parametrize("case", ["mma_bfloat16", "matrices_transposed", "copy_groups", "copies_for_others"])
def test_tensor_cores_and_copies_stay_inside_shared_memory(sanitized_programs: Path, case: str) -> None:
    result = run(sanitized_programs / "tensor_cases", case)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize("case", ["hand_over", "shuffles", "votes", "return_early"])
def test_switching_fibers_is_no_fault(sanitized_programs: Path, case: str) -> None:
    result = run(sanitized_programs / "sim_cases", case)
    assert (result.returncode, result.stdout) == (0, "")
