"""Faults of products with matrices of codes."""

from native.mutants.mutant import CROOKED, RACE, WRONG, Mutant

_FEW, _LINEAR, _UNPACK = (f"cuda/quantized/{name}.cu" for name in ("few_rows", "linear", "unpack_rows"))
_CODES, _LAYOUT, _LOADS, _SCRATCH = (
    f"cuda/quantized/{name}.h" for name in ("codes", "layout", "tile_loads", "scratch")
)
_TESTS = "device/test_device_quantized.py::"
_OF_FEW, _ODD = f"{_TESTS}test_multiplies_few_rows", f"{_TESTS}test_multiplies_matrices_of_odd_sizes"
_PACKED = f"{_TESTS}test_packed_rows_are_the_codes_times_their_scales"

MUTANTS = (
    Mutant(
        "codes_wait_one_group_short",
        _FEW,
        "copies_wait<S::kStages - 2>();",
        "copies_wait<S::kStages - 1>();",
        "multiplies codes that are still on their way",
        _OF_FEW,
        f"{RACE}|{WRONG}",
    ),
    Mutant(
        "codes_read_without_barrier",
        _FEW,
        "copies_wait<S::kStages - 2>();\n    __syncthreads();",
        "copies_wait<S::kStages - 2>();",
        "multiplies rows of x that other warps are loading",
        _OF_FEW,
        RACE,
    ),
    Mutant(
        "warps_joined_without_first_barrier",
        _FEW,
        "other < S::kDeep; other++) {\n    __syncthreads();",
        "other < S::kDeep; other++) {",
        "stores sums over stages that other warps still multiply",
        _OF_FEW,
        RACE,
    ),
    Mutant(
        "warps_joined_without_second_barrier",
        _FEW,
        "mine[i * kWarpSize] = flat[i];\n    }\n    __syncthreads();",
        "mine[i * kWarpSize] = flat[i];\n    }",
        "adds sums that other warps have not stored",
        _OF_FEW,
        RACE,
    ),
    Mutant(
        "x_of_any_alignment_in_packs",
        _FEW,
        "args.matrix.inputs % 8 == 0 && in_packs({args.x});",
        "args.matrix.inputs % 8 == 0;",
        "copies 16 bytes from where a card has no such access",
        f"{_TESTS}test_rows_of_x_need_only_the_alignment_of_their_elements",
        CROOKED,
    ),
    Mutant(
        "first_group_of_a_step_alone",
        _FEW,
        "matrix.group == 32 ? half : 0;",
        "0;",
        "scales the second group of a step by the first's",
        _ODD,
        WRONG,
    ),
    Mutant(
        "outputs_of_rows_that_are_not_there",
        _SCRATCH,
        "if (output >= args.matrix.outputs || row >= args.rows) return;",
        "if (output >= args.matrix.outputs) return;",
        "writes behind the last row",
        _OF_FEW,
        WRONG,
    ),
    Mutant(
        "bias_of_the_place",
        _LINEAR,
        "[place % args.matrix.outputs]",
        "[place % (args.matrix.outputs + 1)]",
        "adds the bias of another output",
        _OF_FEW,
        WRONG,
    ),
    Mutant(
        "steps_beyond_the_last",
        _LOADS,
        "tile < layout.tiles && step < layout.steps;",
        "tile < layout.tiles;",
        "multiplies codes of the next tile",
        _ODD,
        WRONG,
    ),
    Mutant(
        "inputs_beyond_the_last",
        _LOADS,
        "row < args.rows && k < inputs;",
        "row < args.rows;",
        "multiplies the next row of x where the row has ended",
        _ODD,
        WRONG,
    ),
    Mutant(
        "zero_point_off_by_one",
        _CODES,
        "kCountingFrom<T> + static_cast<float>(zero)",
        "kCountingFrom<T> + static_cast<float>(zero + 1)",
        "takes one from each code too much",
        _OF_FEW,
        WRONG,
    ),
    Mutant(
        "scales_of_the_first_tile",
        _LAYOUT,
        "return (output / kTileOutputs * layout.groups + number) * kTileOutputs",
        "return number * kTileOutputs",
        "packs the scales of all tiles over those of the first",
        _PACKED,
        WRONG,
    ),
    Mutant(
        "ids_one_beyond_the_last",
        _UNPACK,
        "row >= 0 && row < args.matrix.outputs;",
        "row >= 0 && row <= args.matrix.outputs;",
        "gives numbers for an id that the table has not",
        _PACKED,
        WRONG,
    ),
    Mutant(
        "unpacked_to_any_alignment",
        _UNPACK,
        "args.matrix.inputs % kTogether == 0 && in_packs({args.out});",
        "args.matrix.inputs % kTogether == 0;",
        "stores 16 bytes where a card has no such access",
        f"{_TESTS}test_unpacked_rows_need_only_the_alignment_of_their_elements",
        CROOKED,
    ),
)
