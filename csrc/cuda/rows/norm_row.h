// A row that is normed: its buffers in packs, and what the kernels of norms do with them.
#pragma once

#include <cstdint>

#include "core.h"
#include "cuda/number.h"
#include "cuda/reduce.h"

namespace core {

// Where the rows of a norm lie.
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

  // What take_input made of the row, for whoever reads it again.
  __device__ const P* taken() const { return residual == nullptr ? x : residual_out; }
};

// Packs travel by value: a reference would let the compiler load element by element.
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

// Pack i of what is normalised; with a residual it becomes the new residual on the way.
template <typename T, int Width>
__device__ Pack<T, Width> take_input(const NormRow<T, Width>& row, int64_t i) {
  if (row.residual == nullptr) return row.x[i];
  const Pack<T, Width> sum = add(row.x[i], row.residual[i]);
  row.residual_out[i] = sum;
  return sum;
}

// Factor of a row, from each thread's share of the sum of squares.
__device__ inline float row_scale(float share, int64_t hidden, float eps) {
  return inverse_sqrt(block_sum(share) / static_cast<float>(hidden) + eps);
}

}  // namespace core
