"""The CUDA simulator: right kernels come out right, and planted faults are found."""

import signal
from pathlib import Path

import pytest
from native.build import run
from native.conftest import need_sim

ORDERS = ["forward", "reverse", "random:1", "random:2"]
RIGHT = [
    "reverse",
    "hand_over",
    "vote_at_barrier",
    "return_early",
    "leave_others_at_a_barrier",
    "shuffles",
    "votes",
    "block_sums",
    "atomics",
    "indices",
    "fresh_shared",
    "impossible_launches",
    "begin_early",
]
FAULTS = {
    "begin_without_the_last": "a thread of a kernel that is launched early does not begin with begin_kernel()",
    "vote_before_the_begin": "a thread of a kernel that is launched early does not begin with begin_kernel()",
    "skip_a_barrier": "deadlock in block (0, 0, 0): 31 of 32 threads wait at a barrier; "
    "in warp 0 lanes 1 wait for lanes fffffffe",
    "name_absent_lanes": "deadlock in block (0, 0, 0): 16 of 32 threads wait at a barrier; "
    "in warp 0 lanes ffff wait for lanes ffff0000",
    "leave_oneself_out": "a lane calls a warp collective with a mask that leaves it out",
    "read_beyond_the_mask": "which takes no part",
    "mix_collectives": "lanes of one warp meet in different collectives",
    "overrun_an_array": "a write past the end of a shared array",
    "overrun_dynamic": "a write past the end of a shared array",
}

TENSOR_RIGHT = [
    "mma_bfloat16",
    "mma_float16",
    "mma_int8",
    "matrices",
    "matrices_transposed",
    "copy_groups",
    "copies_for_others",
]
TENSOR_WRONG = ["copies_without_wait", "copies_without_barrier"]
TENSOR_FAULTS = {
    "never_wait": "a thread returns without waiting for its cp.async",
    "copy_past_the_array": "the target of cp.async lies outside of shared memory",
    "copy_from_between": "the source of cp.async is not aligned to 16 bytes",
    "read_rows_from_between": "a row of ldmatrix is not aligned to 16 bytes",
    "read_rows_past_the_array": "a row of ldmatrix lies outside of shared memory",
    "multiply_without_a_lane": "in warp 0 lanes ffffffdf wait for lanes 20",
    "multiply_behind_a_lane_that_returns": "lanes of a warp that uses tensor cores have returned, or never were",
    "multiply_in_part_of_a_warp": "lanes of a warp that uses tensor cores have returned, or never were",
}

WATCHED_RIGHT = ["count", "hand_on", "read_first", "move"]
WATCHED_FAULTS = {
    "count_without_atomics": "a race in block",
    "hand_on_by_a_shuffle": "a race in block",
    "read_first_without_barrier": "a race in block",
    "move_from_between": "is not aligned to 16 bytes, but lies 4 bytes behind such an address",
}

every_order = pytest.mark.parametrize("order", ORDERS)


@pytest.fixture(params=["sim_cases", "sim_cases_portable"])
def program(request: pytest.FixtureRequest, programs: Path) -> Path:
    """The cases, with the fibers for x86-64 and with those for every other processor."""
    need_sim()
    return programs / str(request.param)


@pytest.fixture
def tensor_program(programs: Path) -> Path:
    """The cases of tensor cores and asynchronous copies."""
    need_sim()
    return programs / "tensor_cases"


@every_order
@pytest.mark.parametrize("case", RIGHT)
def test_a_right_kernel_is_right_in_every_order(program: Path, case: str, order: str) -> None:
    result = run(program, case, env={"CUSIM_ORDER": order})
    assert (result.returncode, result.stdout) == (0, "")


@every_order
def test_a_missing_barrier_gives_wrong_results(program: Path, order: str) -> None:
    assert run(program, "reverse_without_barrier", env={"CUSIM_ORDER": order}).returncode == 1


def test_a_write_after_read_race_differs_between_orders(program: Path) -> None:
    case = "hand_over_without_trailing_barrier"
    codes = {order: run(program, case, env={"CUSIM_ORDER": order}).returncode for order in ("forward", "reverse")}
    assert codes == {"forward": 0, "reverse": 1}


@every_order
@pytest.mark.parametrize("fault", FAULTS)
def test_a_synchronisation_fault_ends_the_process_with_its_name(program: Path, fault: str, order: str) -> None:
    result = run(program, fault, env={"CUSIM_ORDER": order})
    assert result.returncode == -signal.SIGABRT
    assert result.stdout.startswith("cusim: ")
    assert FAULTS[fault] in result.stdout


@every_order
@pytest.mark.parametrize("case", TENSOR_RIGHT)
def test_a_tensor_core_or_copy_does_what_its_instruction_does(tensor_program: Path, case: str, order: str) -> None:
    result = run(tensor_program, case, env={"CUSIM_ORDER": order})
    assert (result.returncode, result.stdout) == (0, "")


@every_order
@pytest.mark.parametrize("case", TENSOR_WRONG)
def test_copies_that_nobody_waited_for_give_wrong_results(tensor_program: Path, case: str, order: str) -> None:
    assert run(tensor_program, case, env={"CUSIM_ORDER": order}).returncode == 1


@every_order
@pytest.mark.parametrize("fault", TENSOR_FAULTS)
def test_a_wrong_use_of_tensor_cores_or_copies_ends_the_process(tensor_program: Path, fault: str, order: str) -> None:
    result = run(tensor_program, fault, env={"CUSIM_ORDER": order})
    assert result.returncode == -signal.SIGABRT
    assert result.stdout.startswith("cusim: ")
    assert TENSOR_FAULTS[fault] in result.stdout


@every_order
@pytest.mark.parametrize("case", WATCHED_RIGHT)
def test_t3_what_a_card_would_do_is_right_when_watched(programs: Path, case: str, order: str) -> None:
    need_sim()
    result = run(programs / "watched_cases", case, env={"CUSIM_ORDER": order})
    assert (result.returncode, result.stdout) == (0, "")


@every_order
@pytest.mark.parametrize("fault", WATCHED_FAULTS)
def test_t3_races_and_crooked_addresses_end_the_process(programs: Path, fault: str, order: str) -> None:
    """Also where threads that run one after the other would come to what is right."""
    need_sim()
    result = run(programs / "watched_cases", fault, env={"CUSIM_ORDER": order})
    assert result.returncode == -signal.SIGABRT
    assert result.stdout.startswith("cusim: ")
    assert WATCHED_FAULTS[fault] in result.stdout


@pytest.mark.parametrize("order", ["", "sideways", "random", "random:", "random:x"])
def test_an_unknown_order_is_refused(program: Path, order: str) -> None:
    result = run(program, "indices", env={"CUSIM_ORDER": order})
    assert result.returncode == -signal.SIGABRT
    assert f'CUSIM_ORDER is "{order}": it must be forward, reverse or random:SEED' in result.stdout
