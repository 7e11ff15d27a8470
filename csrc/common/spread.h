// Keys and values of UINT4 are stored spread, so that no entry is far larger than the others of its head: their codes
// would have to reach as far. Instead of a head's entries lie all sums of them with some signs, those of a Hadamard
// matrix: entry i becomes the sum of entries j of its block, negative where i and j have an odd number of bits in
// common. Spread twice, entries are what they were times the entries of a block. So with queries spread alike and
// divided by that number, products are what they were, and outputs are spread again, and divided.
//
// Sums are made of two at a time, neighbours first, then those 2 apart, 4 and so on: the same bits on every device.
#pragma once

#include <stdint.h>

#include "common/both.h"

namespace core {

// Entries that are spread together: the largest power of two that divides a head's.
CORE_BOTH int64_t spread_block(int64_t head_dim) {
  return head_dim & -head_dim;
}

}  // namespace core
