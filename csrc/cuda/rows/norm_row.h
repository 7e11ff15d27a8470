// A row to be normalized: its buffers in packs, and helpers for the norm kernels.
#pragma once

#include <cstdint>

#include "core.h"
#include "cuda/number.h"
#include "cuda/reduce.h"

namespace core {

// The buffers of a norm.
struct NormInput {
  const void* x;
  const void* residual;  // null: none
  void* residual_out;
  int64_t hidden;
};

// The input of one row, in packs.
template <typename T, int Width>
struct NormRow {
  using P = Pack<T, Width>;

  const P* x;
  const P* residual;  // null: none
  P* residual_out;
  int packs;

  __device__ NormRow(const NormInput& input, int64_t row) : packs(static_cast<int>(input.hidden / Width)) {
    const int64_t offset = row * packs;
    x = static_cast<const P*>(input.x) + offset;
    residual = input.residual == nullptr ? nullptr : static_cast<const P*>(input.residual) + offset;
    residual_out = input.residual == nullptr ? nullptr : static_cast<P*>(input.residual_out) + offset;
  }

  // The row after take_input, for reading it again.
  __device__ const P* taken() const { return residual == nullptr ? x : residual_out; }
};

// Packs are passed by value: with a reference the compiler may load element by element.
template <typename T, int Width>
__device__ Pack<T, Width> add(Pack<T, Width> a, Pack<T, Width> b) {
  Pack<T, Width> sum;
#pragma unroll
  for (int i = 0; i < Width; i++) sum.at[i] = from_float<T>(to_float(a.at[i]) + to_float(b.at[i]));
  return sum;
}

template <typename T, int Width>
__device__ float sum_of_squares(Pack<T, Width> pack) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < Width; i++) sum += to_float(pack.at[i]) * to_float(pack.at[i]);
  return sum;
}

// Return pack i of the norm's input; with a residual, also store it as the new residual.
template <typename T, int Width>
__device__ Pack<T, Width> take_input(const NormRow<T, Width>& row, int64_t i) {
  if (row.residual == nullptr) return row.x[i];
  const Pack<T, Width> sum = add(row.x[i], row.residual[i]);
  row.residual_out[i] = sum;
  return sum;
}

// Return the factor of a row from each thread's partial sum of squares.
__device__ inline float row_scale(float share, int64_t hidden, float eps) {
  return inverse_sqrt(block_sum(share) / static_cast<float>(hidden) + eps);
}

}  // namespace core
