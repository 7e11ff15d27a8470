// Keys and values of UINT4 are stored Hadamard rotated, so that no entry is far larger than the others of its head,
// which would widen the step between codes. Entry i of a block becomes the sum of its entries j, negative where i and j
// have an odd number of bits in common. The matrix is not normalised: two rotations multiply by the entries of a block.
// So queries are rotated and divided by that number, which leaves q.k unchanged, and outputs are rotated again and
// divided.
//
// Sums are built from two at a time, neighbours first, then those 2 apart, 4 and so on: the same bits on every device.
#pragma once

#include <stdint.h>

#include "common/both.h"

namespace core {

// Entries that are rotated together: the largest power of two that divides head_dim.
CORE_BOTH int64_t hadamard_block(int64_t head_dim) {
  return head_dim & -head_dim;
}

}  // namespace core
