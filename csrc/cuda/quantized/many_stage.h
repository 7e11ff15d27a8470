// Stages of the product of many rows with a quantized matrix, which a block loads into shared memory some steps ahead:
// codes and scales of its tiles of outputs, its rows of x, and the sums of those. Each warp multiplies 32 outputs with
// 64 rows.
#pragma once

#include <cstdint>

#include "cuda/launch.h"
#include "cuda/quantized/scratch.h"
#include "cuda/quantized/tile_loads.h"
#include "cuda/reduce.h"

namespace core::many {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kWarpOutputs = 32;
constexpr int kWarpRows = 64;
constexpr int kMostStages = 4;

// Division of a block: RowWarps warps along the rows, the others along the outputs.
template <int Bits, int RowWarps>
struct Shape {
  static constexpr int kOutputWarps = kWarps / RowWarps;
  static constexpr int kTiles = kOutputWarps * kWarpOutputs / kTileOutputs;
  static constexpr int kRows = RowWarps * kWarpRows;
  static constexpr int kCodeBytes = kTileOutputs * kStepInputs * Bits / 8;  // of a tile
  static constexpr int kScaleBytes = 2 * kTileOutputs * 4;                  // of a tile: two groups in float32
  static constexpr int kXBytes = kRows * kStepInputs * 2;
  static constexpr int kSumBytes = kRows * 4;  // of x over the inputs of a scale
  static constexpr int kStageBytes = kTiles * (kCodeBytes + 2 * kScaleBytes) + kXBytes + 2 * kSumBytes;
  static constexpr int kStages = kMostStages * kStageBytes <= kMostSharedBytes ? kMostStages : kMostStages - 1;
  static_assert(kStages * kStageBytes <= kMostSharedBytes);
  static_assert(kRows <= kMostRowsOfBlock);
};

// One stage in shared memory.
template <int Bits, int RowWarps>
struct Stage {
  using S = Shape<Bits, RowWarps>;

  unsigned char* base;

  __device__ TileStep step(int tile) const {
    unsigned char* scales = base + S::kTiles * S::kCodeBytes + tile * S::kScaleBytes;
    return {base + tile * S::kCodeBytes, scales, scales + S::kTiles * S::kScaleBytes};
  }
  // Row of x: eight chunks of eight inputs, turned by the row so that neighbouring rows do not meet in the same banks.
  __device__ unsigned char* x(int row, int chunk) const {
    return base + S::kTiles * (S::kCodeBytes + 2 * S::kScaleBytes) + row * 128 + (chunk ^ row % 8) * kChunkBytes;
  }
  // Sums of rows of x over the inputs of a scale.
  __device__ float* sums(int unit) const { return reinterpret_cast<float*>(x(S::kRows, 0) + unit * S::kSumBytes); }
};

// The part of the product that a block computes: tiles of outputs, and rows.
struct Part {
  int64_t first_tile;
  int64_t first_row;
};

// Start to load a step.
template <typename T, int Bits, int RowWarps>
__device__ void bring_step(const Stage<Bits, RowWarps>& stage, const CoreQuantizedLinear& args,
                           const QuantizedLayout& layout, const Part& part, int64_t step, bool packed) {
  using S = Shape<Bits, RowWarps>;
  constexpr int kTileThreads = kThreads / S::kTiles;
  const int thread = static_cast<int>(threadIdx.x), tile = thread / kTileThreads;
  bring_codes<Bits, kTileThreads>(stage.step(tile), args.matrix, layout, part.first_tile + tile, step,
                                  thread % kTileThreads);
#pragma unroll
  for (int i = 0; i < S::kRows * 8 / kThreads; i++) {
    const int row = (i * kThreads + thread) / 8, chunk = thread % 8;
    bring_inputs<T>(stage.x(row, chunk), args, part.first_row + row, step * kStepInputs + chunk * 8, packed);
  }
  if (args.matrix.offsets == 0) return;
  const QuantizedScratch scratch(args.matrix, args.rows);
  const int units = scales_of_step(args.matrix), chunk = thread % (S::kRows / 4), unit = thread / (S::kRows / 4);
  if (unit >= units) return;
  const float* sums = args.scratch + (step * units + unit) * scratch.padded + part.first_row;
  copy_async(stage.sums(unit) + chunk * 4, sums + chunk * 4);
}

}  // namespace core::many
