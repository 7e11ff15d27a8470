// Stages of the product with a quantized matrix, which a block loads into shared memory some rounds ahead: codes and
// scales of each warp's step, and the rows of x for the steps of the round.
#pragma once

#include <cstdint>

#include "cuda/launch.h"
#include "cuda/mma.h"
#include "cuda/quantized/layout.h"
#include "cuda/reduce.h"

namespace core {

constexpr int kWarps = 4;
constexpr int kLinearThreads = kWarps * kWarpSize;
constexpr int kMostStages = 4;

constexpr int kMostXTiles = 4;  // with twice as many, registers would spill

// Division of a block: XTiles tiles of 8 rows of x; kAcross warps along the outputs, and kDeep along the inputs of a
// round. With many rows, x should be read by few blocks; with few rows, there is no work to split along the outputs.
template <int Bits, int XTiles>
struct Shape {
  static constexpr int kAcross = XTiles <= 2 ? 1 : 2;
  static constexpr int kDeep = kWarps / kAcross;
  static constexpr int kRows = XTiles * 8;
  static constexpr int kCodeBytes = kTileOutputs * kStepInputs * Bits / 8;
  static constexpr int kChunks = kCodeBytes / (kChunkBytes * kWarpSize);  // of a lane
  static constexpr int kScaleBytes = 2 * kTileOutputs * 4;                // two groups in float32
  static constexpr int kXBytes = kRows * kStepInputs * 2;                 // of a step
  static constexpr int kStageBytes = kWarps * (kCodeBytes + 2 * kScaleBytes) + kDeep * kXBytes;
  static constexpr int kStages = kMostStages * kStageBytes <= kMostSharedBytes ? kMostStages : kMostStages - 1;
  static_assert(kStages * kStageBytes <= kMostSharedBytes);
  // Minimum number of blocks per multiprocessor, for __launch_bounds__. By default the compiler aims at more than fit
  // into shared memory, and spills registers for it; 0: the default.
  static constexpr int kTogether = XTiles <= 1 ? 4 : XTiles <= 2 ? 3 : 0;
};

// One stage in shared memory.
template <int Bits, int XTiles>
struct Stage {
  using S = Shape<Bits, XTiles>;

  unsigned char* base;

  __device__ unsigned char* codes(int warp) const { return base + warp * S::kCodeBytes; }
  __device__ unsigned char* scales(int warp) const { return base + kWarps * S::kCodeBytes + warp * S::kScaleBytes; }
  __device__ unsigned char* offsets(int warp) const { return scales(warp + kWarps); }
  // Row of x in the step of a warp: eight chunks of eight inputs, turned by the row so that neighbouring rows do not
  // meet in the same banks.
  __device__ unsigned char* x(int deep, int row, int chunk) const {
    unsigned char* rows = base + kWarps * (S::kCodeBytes + 2 * S::kScaleBytes);
    return rows + deep * S::kXBytes + row * 128 + (chunk ^ row % 8) * kChunkBytes;
  }
};

// Start to load a warp's codes and scales of a step; zeros if there is no such step.
template <int Bits, int XTiles>
__device__ void bring_codes(const Stage<Bits, XTiles>& stage, const CoreQuantized& matrix,
                            const QuantizedLayout& layout, int64_t tile, int64_t step) {
  using S = Shape<Bits, XTiles>;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const auto* data = static_cast<const unsigned char*>(matrix.data);
  const bool there = tile < layout.tiles && step < layout.steps;
  const unsigned char* codes = there ? data + (tile * layout.steps + step) * layout.step_bytes : data;
#pragma unroll
  for (int i = 0; i < S::kChunks; i++) {
    const int at = (i * kWarpSize + lane) * kChunkBytes;
    copy_async(stage.codes(warp) + at, codes + (there ? at : 0), there);
  }
  const int groups = matrix.group == 32 ? 2 : 1;
  const int64_t group = matrix.group != 0 ? step * kStepInputs / matrix.group : 0;
  const int64_t first = (tile * layout.groups + group) * kTileOutputs * layout.scale_bytes;
  const unsigned char* scales = data + layout.code_bytes + (there ? first : 0);
  for (int at = lane * kChunkBytes; at < groups * kTileOutputs * layout.scale_bytes; at += kWarpSize * kChunkBytes) {
    copy_async(stage.scales(warp) + at, scales + (there ? at : 0), there);
    if (matrix.offsets == 0) continue;
    copy_async(stage.offsets(warp) + at, scales + layout.scales_bytes + (there ? at : 0), there);
  }
}

// Start to load the rows of x for the steps of a round. Packed: rows of x are aligned to chunks.
template <typename T, int Bits, int XTiles>
__device__ void bring_x(const Stage<Bits, XTiles>& stage, const CoreQuantizedLinear& args, int64_t round, bool packed) {
  using S = Shape<Bits, XTiles>;
  constexpr int kAcrossRow = S::kDeep * 8;  // chunks
  const int64_t inputs = args.matrix.inputs;
  for (int i = static_cast<int>(threadIdx.x); i < S::kRows * kAcrossRow; i += kLinearThreads) {
    const int row = i / kAcrossRow, chunk = i % kAcrossRow;
    const int64_t k = round * S::kDeep * kStepInputs + chunk * 8;
    const int64_t row_of_x = int64_t{blockIdx.z} * S::kRows + row;
    const T* from = static_cast<const T*>(args.x) + row_of_x * inputs + k;
    unsigned char* to = stage.x(chunk / 8, row, chunk % 8);
    const bool there = row_of_x < args.rows && k < inputs;
    if (packed) {
      copy_async(to, there ? static_cast<const void*>(from) : args.x, there);
      continue;
    }
    Pack<T, 8> pack;
    for (int j = 0; j < 8; j++) pack.at[j] = there && k + j < inputs ? from[j] : from_float<T>(0.0f);
    *reinterpret_cast<Pack<T, 8>*>(to) = pack;
  }
}

}  // namespace core
