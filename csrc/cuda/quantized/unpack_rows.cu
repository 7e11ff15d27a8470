// Dequantization of rows of a matrix: by id, or consecutive ones for products with many rows.
#include <algorithm>
#include <cstdint>

#include "common/status.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/quantized/layout.h"

namespace core {
namespace {

constexpr int kThreads = 256;
constexpr int kTogether = 8;  // inputs of a thread: four words have their codes

__device__ inline float scale_at(const CoreQuantized& matrix, const void* scales, int64_t place) {
  return matrix.scales == CORE_FLOAT32 ? static_cast<const float*>(scales)[place]
                                       : to_float(static_cast<const Float16*>(scales)[place]);
}

// Eight neighbouring weights, from a multiple of eight on.
template <typename T>
__device__ Pack<T, kTogether> weights_at(const CoreQuantized& matrix, const QuantizedLayout& layout, int64_t row,
                                         int64_t k) {
  const auto* data = static_cast<const unsigned char*>(matrix.data);
  const unsigned char* scales = data + layout.code_bytes;
  const int64_t number = scale_place(layout, matrix.group, row, k);
  const float scale = scale_at(matrix, scales, number);
  const float offset = matrix.offsets != 0 ? scale_at(matrix, scales + layout.scales_bytes, number) : 0.0f;
  Pack<T, kTogether> weights;
#pragma unroll
  for (int i = 0; i < kTogether; i += 2) {
    const CodePlace place = code_place(layout, matrix.bits, row, k + i);
    const uint32_t word = *reinterpret_cast<const uint32_t*>(data + place.word);
#pragma unroll
    for (int j = 0; j < 2; j++) {
      const int32_t code = code_of_word(word, place.shift + j * 16, matrix.bits);
      weights.at[i + j] = from_float<T>(scale * static_cast<float>(code - matrix.zero) + offset);
    }
  }
  return weights;
}

// Grid: (row, piece of the row). Whole: rows of `out` are aligned to packs.
template <typename T, bool Whole>
__global__ void __launch_bounds__(kThreads) unpack_rows_kernel(const __grid_constant__ CoreUnpackRows args) {
  const int64_t row = args.ids == nullptr ? args.first + blockIdx.x : args.ids[blockIdx.x];
  const QuantizedLayout layout(args.matrix);
  const bool there = row >= 0 && row < args.matrix.outputs;
  const int64_t inputs = args.matrix.inputs;
  T* out = static_cast<T*>(args.out) + blockIdx.x * inputs;
  const int64_t first = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kTogether;
  for (int64_t k = first; k < inputs; k += int64_t{gridDim.y} * kThreads * kTogether) {
    Pack<T, kTogether> weights;
#pragma unroll
    for (int i = 0; i < kTogether; i++) weights.at[i] = from_float<T>(NAN);
    if (there) weights = weights_at<T>(args.matrix, layout, row, k);
    if constexpr (Whole) {
      *reinterpret_cast<Pack<T, kTogether>*>(out + k) = weights;
    } else {
      for (int i = 0; i < kTogether && k + i < inputs; i++) out[k + i] = weights.at[i];
    }
  }
}

template <typename T>
int launch_rows(const CoreUnpackRows& args, Stream stream) {
  constexpr int64_t kMostPieces = 1024, kPiece = int64_t{kThreads} * kTogether;
  const dim3 grid(args.rows, std::min((args.matrix.inputs + kPiece - 1) / kPiece, kMostPieces));
  const bool whole = args.matrix.inputs % kTogether == 0 && in_packs({args.out});
  return launch(whole ? unpack_rows_kernel<T, true> : unpack_rows_kernel<T, false>, grid, dim3(kThreads), 0, stream,
                args);
}

}  // namespace

CoreStatus unpack_rows(const CoreUnpackRows& args, Stream stream) {
  if (args.rows == 0) return CORE_OK;
  return device_status(args.matrix.dtype == CORE_BFLOAT16 ? launch_rows<BFloat16>(args, stream)
                                                          : launch_rows<Float16>(args, stream));
}

}  // namespace core
