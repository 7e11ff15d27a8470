// Stages of the product of few rows with a quantized matrix, which a block loads into shared memory some rounds ahead:
// codes and scales of each warp's step, and the rows of x for the steps of the round.
#pragma once

#include <cstdint>

#include "cuda/launch.h"
#include "cuda/quantized/tile_loads.h"
#include "cuda/reduce.h"

namespace core {

constexpr int kWarps = 4;
constexpr int kLinearThreads = kWarps * kWarpSize;
constexpr int kMostStages = 4;

constexpr int kMostXTiles = 4;  // with twice as many, registers would spill
static_assert(kMostXTiles * 8 == CORE_QUANTIZED_FEW_ROWS);

// Division of a block: XTiles tiles of 8 rows of x; kAcross warps along the outputs, and kDeep along the inputs of a
// round. With many rows, x should be read by few blocks; with few rows, there is no work to split along the outputs.
template <int Bits, int XTiles>
struct Shape {
  static constexpr int kAcross = XTiles <= 2 ? 1 : 2;
  static constexpr int kDeep = kWarps / kAcross;
  static constexpr int kRows = XTiles * 8;
  static constexpr int kCodeBytes = kTileOutputs * kStepInputs * Bits / 8;
  static constexpr int kScaleBytes = 2 * kTileOutputs * 4;  // two groups in float32
  static constexpr int kXBytes = kRows * kStepInputs * 2;   // of a step
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

  __device__ TileStep step(int warp) const {
    unsigned char* scales = base + kWarps * S::kCodeBytes + warp * S::kScaleBytes;
    return {base + warp * S::kCodeBytes, scales, scales + kWarps * S::kScaleBytes};
  }
  // Row of x in the step of a warp: eight chunks of eight inputs, turned by the row so that neighbouring rows do not
  // meet in the same banks.
  __device__ unsigned char* x(int deep, int row, int chunk) const {
    unsigned char* rows = base + kWarps * (S::kCodeBytes + 2 * S::kScaleBytes);
    return rows + deep * S::kXBytes + row * 128 + (chunk ^ row % 8) * kChunkBytes;
  }
};

// Start to load the rows of x for the steps of a round.
template <typename T, int Bits, int XTiles>
__device__ void bring_x(const Stage<Bits, XTiles>& stage, const CoreQuantizedLinear& args, int64_t round, bool packed) {
  using S = Shape<Bits, XTiles>;
  constexpr int kAcrossRow = S::kDeep * 8;  // chunks
  for (int i = static_cast<int>(threadIdx.x); i < S::kRows * kAcrossRow; i += kLinearThreads) {
    const int row = i / kAcrossRow, chunk = i % kAcrossRow;
    const int64_t k = round * S::kDeep * kStepInputs + chunk * 8;
    bring_inputs<T>(stage.x(chunk / 8, row, chunk % 8), args, row, k, packed);
  }
}

}  // namespace core
