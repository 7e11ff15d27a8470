// The tensor-core instructions of cuda/mma.h, with fragments as documented for PTX.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "sim/block.h"
#include "sim/collectives.h"

namespace cusim {

// A lane's operands of a product.
struct Fragments {
  uint32_t a[4];
  uint32_t b[2];
};

// Element number `index` of a register.
template <typename T>
auto element_of(uint32_t bits, int index) {
  if constexpr (std::is_same_v<T, int8_t>) {
    return static_cast<int32_t>(static_cast<int8_t>(bits >> index * 8));
  } else {
    const auto half = static_cast<uint16_t>(bits >> index * 16);
    T value;
    memcpy(static_cast<void*>(&value), &half, sizeof value);
    return static_cast<float>(value);
  }
}

// c += A B with A [16, Depth], B [Depth, 8]. Sums run along Depth in order; the order of hardware is unspecified.
template <typename T, int Depth, typename Sum>
void mma(Sum (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  constexpr int kPacked = Depth / 8;  // elements of a register
  const Exchanged& lanes = exchange(0xffffffffu, Collective::kMma, Fragments{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
  const int g = self().lane / 4, t = self().lane % 4;
  for (int part = 0; part < 8; part++) {  // columns of A that one lane of a row's four holds in one register
    const int half = part / 4, holder = part % 4;
    const auto low = lanes.from<Fragments>(g * 4 + holder);
    for (int column = 0; column < 2; column++) {
      const auto other = lanes.from<Fragments>((2 * t + column) * 4 + holder);
      for (int k = 0; k < kPacked; k++) {
        const auto factor = element_of<T>(other.b[half], k);
        c[column] += element_of<T>(low.a[half * 2], k) * factor;
        c[2 + column] += element_of<T>(low.a[half * 2 + 1], k) * factor;
      }
    }
  }
}

// Four matrices [8, 8] of 16-bit elements: lane 8 j + i passes the address of row i of matrix j.
template <bool Transposed>
void load_matrices(uint32_t (&m)[4], const void* row) {
  require_shared(row, 16, "a row of ldmatrix");
  const Exchanged& rows = exchange(0xffffffffu, Collective::kLoadMatrices, row);
  const int g = self().lane / 4, t = self().lane % 4;
  for (int j = 0; j < 4; j++) {
    const auto at = [&](int line, int column) -> uint32_t { return rows.from<const uint16_t*>(j * 8 + line)[column]; };
    const uint32_t first = Transposed ? at(2 * t, g) : at(g, 2 * t);
    const uint32_t second = Transposed ? at(2 * t + 1, g) : at(g, 2 * t + 1);
    m[j] = first | second << 16;
  }
}

}  // namespace cusim
