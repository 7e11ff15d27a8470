// Loads of the products with a quantized matrix, which blocks start some rounds ahead, and the scales of a lane.
#pragma once

#include <cstdint>

#include "cuda/mma.h"
#include "cuda/quantized/layout.h"

namespace core {

// A step of a tile in shared memory.
struct TileStep {
  unsigned char* codes;
  unsigned char* scales;
  unsigned char* offsets;
};

// Start to load the codes and scales of a tile's step, by `Threads` threads of which the caller is number `thread`;
// zeros if there is no such step.
template <int Bits, int Threads>
__device__ void bring_codes(const TileStep& to, const CoreQuantized& matrix, const QuantizedLayout& layout,
                            int64_t tile, int64_t step, int thread) {
  constexpr int kChunks = kTileOutputs * kStepInputs * Bits / 8 / (kChunkBytes * Threads);  // of a thread
  const auto* data = static_cast<const unsigned char*>(matrix.data);
  const bool there = tile < layout.tiles && step < layout.steps;
  const unsigned char* codes = there ? data + (tile * layout.steps + step) * layout.step_bytes : data;
#pragma unroll
  for (int i = 0; i < kChunks; i++) {
    const int at = (i * Threads + thread) * kChunkBytes;
    copy_async(to.codes + at, codes + (there ? at : 0), there);
  }
  const int groups = scales_of_step(matrix);
  const int64_t group = matrix.group == 0 ? 0 : matrix.group == 2 * kStepInputs ? step / 2 : step * groups;
  const int64_t first = (tile * layout.groups + group) * kTileOutputs * layout.scale_bytes;
  const unsigned char* scales = data + layout.code_bytes + (there ? first : 0);
  const int bytes = groups * kTileOutputs * static_cast<int>(layout.scale_bytes);
  for (int at = thread * kChunkBytes; at < bytes; at += Threads * kChunkBytes) {
    copy_async(to.scales + at, scales + (there ? at : 0), there);
    if (matrix.offsets == 0) continue;
    copy_async(to.offsets + at, scales + layout.scales_bytes + (there ? at : 0), there);
  }
}

// Start to load eight inputs of a row of x, from k on; zeros where there are none. Packed: rows of x are aligned to
// chunks.
template <typename T>
__device__ void bring_inputs(unsigned char* to, const CoreQuantizedLinear& args, int64_t row, int64_t k, bool packed) {
  const int64_t inputs = args.matrix.inputs;
  const T* from = static_cast<const T*>(args.x) + row * inputs + k;
  const bool there = row < args.rows && k < inputs;
  if (packed) {
    copy_async(to, there ? static_cast<const void*>(from) : args.x, there);
    return;
  }
  Pack<T, 8> pack;
  for (int j = 0; j < 8; j++) pack.at[j] = there && k + j < inputs ? from[j] : from_float<T>(0.0f);
  *reinterpret_cast<Pack<T, 8>*>(to) = pack;
}

// The scales of a lane's outputs 16 m + g and 16 m + 8 + g of a tile: neighbours in the order of layout.h.
__device__ inline float2 scales_of(const unsigned char* scales, int group, int g, int m, bool wide) {
  const int place = group * kTileOutputs / 2 + g * 4 + m;
  if (wide) return reinterpret_cast<const float2*>(scales)[place];
  const auto pack = reinterpret_cast<const Pack<Float16, 2>*>(scales)[place];
  return make_float2(to_float(pack.at[0]), to_float(pack.at[1]));
}

}  // namespace core
