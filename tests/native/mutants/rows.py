"""Faults of ops on rows."""

from native.mutants.mutant import CROOKED, RACE, WRONG, Mutant

_GATED, _GATHER, _NORM, _QUANTIZE, _SUMS = (
    f"cuda/rows/{name}.cu" for name in ("gated", "gather", "norm", "quantize", "scaled_sums")
)
_LAYER_NORM, _REDUCE = "cuda/rows/layer_norm.cu", "cuda/reduce.h"
_LAYER_NORMS = "device/test_layer_norm.py::test_each_row_is_normed"
_ROWS, _GATES, _NORMS = (f"device/test_{name}.py::" for name in ("device_rows", "device_gates", "norm"))
_GATHERS = f"{_GATES}test_gathers_rows_and_gives_nan_for_ids_that_are_not_there"
_CODED = f"{_ROWS}test_codes_and_scales_are_those_of_float32"

MUTANTS = (
    Mutant(
        "gates_of_any_alignment_in_packs",
        _GATED,
        "packed && in_packs({args.gate, args.up, args.out})",
        "packed",
        "moves 16 bytes where a card has no such access",
        f"{_GATES}test_t3_gates_need_only_the_alignment_of_elements",
        CROOKED,
    ),
    Mutant(
        "gates_of_any_stride_in_packs",
        _GATED,
        "(args.width | args.gate_stride | args.up_stride) % kWidth",
        "args.width % kWidth",
        "reads the second row elsewhere than it lies",
        f"{_GATES}test_gates_of_any_stride_are_read_where_they_lie",
        WRONG + "|" + CROOKED,
    ),
    Mutant(
        "gates_that_lose_nan",
        _GATED,
        "const float g = gate > 7.0f ? 7.0f : gate,",
        "const float g = fminf(gate, 7.0f),",
        "makes a number of what is none",
        f"{_GATES}test_gates_of_nan_are_nan",
        WRONG,
    ),
    Mutant(
        "gathers_of_any_alignment_in_packs",
        _GATHER,
        "row_bytes % kPackBytes == 0 && in_packs({args.table, args.out});",
        "row_bytes % kPackBytes == 0;",
        "moves 16 bytes where a card has no such access",
        f"{_GATES}test_gathers_need_only_the_alignment_of_elements",
        CROOKED,
    ),
    Mutant(
        "gathers_below_the_table",
        _GATHER,
        "id >= 0 && id < args.count;",
        "id < args.count;",
        "reads before the table",
        _GATHERS,
        WRONG,
    ),
    Mutant(
        "gathers_behind_the_table",
        _GATHER,
        "id >= 0 && id < args.count;",
        "id >= 0 && id <= args.count;",
        "reads behind the table",
        _GATHERS,
        WRONG,
    ),
    Mutant(
        "norms_of_any_alignment_in_packs",
        _NORM,
        " && in_packs({args.x, args.residual, args.weight, args.out, args.residual_out});",
        ";",
        "moves 16 bytes where a card has no such access",
        f"{_NORMS}test_buffers_need_only_the_alignment_of_their_elements",
        CROOKED,
    ),
    Mutant(
        "layer_norms_of_any_alignment_in_packs",
        _LAYER_NORM,
        " && in_packs({args.x, args.weight, args.bias, args.out});",
        ";",
        "moves 16 bytes where a card has no such access",
        _LAYER_NORMS,
        CROOKED,
        "forward and shifted",
    ),
    Mutant(
        "layer_norms_of_one_entry_less",
        _LAYER_NORM,
        "squares / n + args.eps",
        "squares / (n - 1.0f) + args.eps",
        "divides by the variance of a sample",
        _LAYER_NORMS,
        WRONG,
    ),
    Mutant(
        "codes_of_any_alignment_in_packs",
        _QUANTIZE,
        "args.width % kWidth == 0 && in_packs({args.x, args.out});",
        "args.width % kWidth == 0;",
        "moves 16 bytes where a card has no such access",
        f"{_ROWS}test_rows_need_only_the_alignment_of_their_elements",
        CROOKED,
    ),
    Mutant(
        "normed_codes_of_any_alignment_in_packs",
        _QUANTIZE,
        "&& in_packs({args.x, args.residual, args.weight, args.residual_out, args.out});",
        ";",
        "moves 16 bytes where a card has no such access",
        f"{_ROWS}test_t3_norms_need_only_the_alignment_of_elements",
        CROOKED,
    ),
    Mutant(
        "sums_of_any_alignment_in_packs",
        _SUMS,
        "&& in_packs({args.sums, args.scales, args.bias, args.out});",
        ";",
        "moves 16 bytes where a card has no such access",
        f"{_GATES}test_sums_need_only_the_alignment_of_elements",
        CROOKED,
    ),
    Mutant(
        "reduced_without_first_barrier",
        _REDUCE,
        "of_warps[threadIdx.x / kWarpSize] = of_warp;\n  __syncthreads();",
        "of_warps[threadIdx.x / kWarpSize] = of_warp;",
        "reduces what other warps have not stored",
        _CODED,
        RACE,
    ),
    Mutant(
        "reduced_without_second_barrier",
        _REDUCE,
        "  __syncthreads();  // the next call writes of_warps again\n",
        "",
        "stores the next reduction over the last, which other warps still read",
        "device/test_device_sampling.py::test_top_k_is_exact_where_the_list_of_candidates_overflows",
        RACE,
    ),
    Mutant(
        "largest_that_loses_nan",
        _REDUCE,
        "return a > b || a != a ? a : b;",
        "return fmaxf(a, b);",
        "gives codes of numbers for a row that holds none",
        f"{_ROWS}test_a_row_that_is_not_finite_is_told_by_its_scale",
        WRONG,
    ),
)
