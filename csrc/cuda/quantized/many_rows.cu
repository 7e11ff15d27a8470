// Products of many rows with a quantized matrix, on tensor cores, in tiles of rows and outputs. Codes become fragments
// in registers: outputs are the rows of fragments A, rows of x the columns of fragments B. Codes are multiplied
// unscaled; the sums over the inputs of a scale are scaled in float32.
#include <algorithm>
#include <cstdint>

#include "cuda/launch.h"
#include "cuda/quantized/codes.h"
#include "cuda/quantized/many_stage.h"
#include "cuda/quantized/products.h"

namespace core {
namespace {

using many::kThreads;

constexpr int kOutputTiles = many::kWarpOutputs / 16, kXTiles = many::kWarpRows / 8;
constexpr int kFragments = kStepInputs / 16;  // of a step
constexpr int kAtOnce = 2;                    // tiles of rows whose products are in flight, with all outputs

using Sums = float[kOutputTiles][kXTiles][4];

// What a warp multiplies of its block's part.
struct WarpPart {
  int first_row, tile, first_output;  // of the block, of the block, of the tile
};

template <int Bits, int RowWarps>
__device__ WarpPart warp_part() {
  constexpr int kOutputWarps = many::Shape<Bits, RowWarps>::kOutputWarps;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, first = warp % kOutputWarps * many::kWarpOutputs;
  return {warp / kOutputWarps * many::kWarpRows, first / kTileOutputs, first % kTileOutputs};
}

// Load the fragments B of eight rows of x.
template <int Bits, int RowWarps>
__device__ void load_x(const many::Stage<Bits, RowWarps>& stage, int first_row, uint32_t (&x)[kFragments][2]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    uint32_t found[4];
    load_matrices(found, stage.x(first_row + lane % 8, half * 4 + lane / 8));
#pragma unroll
    for (int i = 0; i < 4; i++) x[half * 2 + i / 2][i % 2] = found[i];
  }
}

// Make the fragments A of 16 outputs, number m of a tile.
template <typename T, int Bits>
__device__ void decode_step(const Decoder<T, Bits>& decoder, const unsigned char* codes, int m,
                            uint32_t (&a)[kFragments][4]) {
  constexpr int kChunks = Bits / 4, kOfChunk = kFragments / kChunks;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int chunk = 0; chunk < kChunks; chunk++) {
    const unsigned char* place = codes + ((m * kChunks + chunk) * kWarpSize + lane) * kChunkBytes;
    const auto words = *reinterpret_cast<const Pack<uint32_t, 4>*>(place);
#pragma unroll
    for (int i = 0; i < kOfChunk; i++) decoder.decode(words.at + i * kChunks, a[chunk * kOfChunk + i]);
  }
}

// Scales and offsets of a lane's outputs, by tile of outputs and by unit of inputs that share them.
template <int Units>
struct Scales {
  float2 scales[kOutputTiles][Units];
  float2 offsets[kOutputTiles][Units];
};

// Add the products of some rows over a unit of inputs, scaled. x_sums are the lane's, of these rows.
template <bool Offsets, int Units>
__device__ void add_scaled(const float (&products)[kOutputTiles][kAtOnce][4], const Scales<Units>& of, int unit,
                           const float2* x_sums, int first, Sums& sums) {
#pragma unroll
  for (int n = 0; n < kAtOnce; n++) {
    float2 x_sum = {};
    if constexpr (Offsets) x_sum = x_sums[n * 4];
#pragma unroll
    for (int m = 0; m < kOutputTiles; m++) {
      const float2 scales = of.scales[m][unit], offsets = of.offsets[m][unit];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float& sum = sums[m][first + n][i];
        sum += (i < 2 ? scales.x : scales.y) * products[m][n][i];
        if constexpr (Offsets) sum += (i < 2 ? offsets.x : offsets.y) * (i % 2 == 0 ? x_sum.x : x_sum.y);
      }
    }
  }
}

// Add the products of a step, whose inputs have one scale, or with two units a scale for each half. The codes of all
// outputs become fragments first, so that few rows of x are in registers at once.
template <typename T, int Bits, int RowWarps, bool Offsets, int Units>
__device__ void multiply_step(const many::Stage<Bits, RowWarps>& stage, const Decoder<T, Bits>& decoder, bool wide,
                              Sums& sums) {
  constexpr int kDeep = kFragments / Units;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, g = lane / 4, t = lane % 4;
  const WarpPart part = warp_part<Bits, RowWarps>();
  const TileStep step = stage.step(part.tile);
  uint32_t a[kOutputTiles][kFragments][4];
  Scales<Units> of = {};
#pragma unroll
  for (int m = 0; m < kOutputTiles; m++) {
    const int of_tile = part.first_output / 16 + m;
    decode_step(decoder, step.codes, of_tile, a[m]);
#pragma unroll
    for (int unit = 0; unit < Units; unit++) {
      of.scales[m][unit] = scales_of(step.scales, unit, g, of_tile, wide);
      if constexpr (Offsets) of.offsets[m][unit] = scales_of(step.offsets, unit, g, of_tile, wide);
    }
  }
#pragma unroll
  for (int first = 0; first < kXTiles; first += kAtOnce) {
    const int row = part.first_row + first * 8;
    uint32_t x[kAtOnce][kFragments][2];
#pragma unroll
    for (int n = 0; n < kAtOnce; n++) load_x(stage, row + n * 8, x[n]);
#pragma unroll
    for (int unit = 0; unit < Units; unit++) {
      float products[kOutputTiles][kAtOnce][4] = {};
#pragma unroll
      for (int k = unit * kDeep; k < (unit + 1) * kDeep; k++) {
#pragma unroll
        for (int m = 0; m < kOutputTiles; m++) {
#pragma unroll
          for (int n = 0; n < kAtOnce; n++) mma<T>(products[m][n], a[m][k], x[n][k]);
        }
      }
      const auto* x_sums = reinterpret_cast<const float2*>(stage.sums(unit) + row) + t;
      add_scaled<Offsets>(products, of, unit, x_sums, first, sums);
    }
  }
}

// Store the sums of a warp, whose first output and row these are.
template <typename T>
__device__ void put_sums(const CoreQuantizedLinear& args, int64_t first_output, int64_t first_row, const Sums& sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, g = lane / 4, t = lane % 4;
  float* of_split = sums_of_split(args, blockIdx.y);
#pragma unroll
  for (int m = 0; m < kOutputTiles; m++) {
#pragma unroll
    for (int n = 0; n < kXTiles; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int64_t output = first_output + m * 16 + i / 2 * 8 + g, row = first_row + n * 8 + 2 * t + i % 2;
        put_sum<T>(args, of_split, output, row, sums[m][n][i]);
      }
    }
  }
}

// Grid: (tiles of rows for each of outputs, split). Tiles of rows are neighbours, so that all but the first find the
// codes in the cache. Each block takes some steps of inputs.
template <typename T, int Bits, int RowWarps, bool Offsets>
__global__ void __launch_bounds__(kThreads)
    many_rows_kernel(const __grid_constant__ CoreQuantizedLinear args, bool packed) {
  using S = many::Shape<Bits, RowWarps>;
  DYNAMIC_SHARED(unsigned char, shared);
  const QuantizedLayout layout(args.matrix);
  const int64_t row_tiles = (args.rows + S::kRows - 1) / S::kRows;
  const many::Part part = {blockIdx.x / row_tiles * S::kTiles, blockIdx.x % row_tiles * S::kRows};
  const int64_t each = (layout.steps + gridDim.y - 1) / gridDim.y;
  const int64_t first = blockIdx.y * each, last = min(layout.steps, first + each);
  const auto stage_of = [&](int64_t step) {
    return many::Stage<Bits, RowWarps>{shared + static_cast<int>(step - first) % S::kStages * S::kStageBytes};
  };
  const auto bring = [&](int64_t step) {
    if (step < last) many::bring_step<T>(stage_of(step), args, layout, part, step, packed);
    copies_commit();
  };
  for (int ahead = 0; ahead < S::kStages - 1; ahead++) bring(first + ahead);
  const WarpPart mine = warp_part<Bits, RowWarps>();
  const int64_t first_output = (part.first_tile + mine.tile) * kTileOutputs + mine.first_output;
  const int64_t first_row = part.first_row + mine.first_row;
  const bool there = first_output < args.matrix.outputs && first_row < args.rows;
  const bool wide = args.matrix.scales == CORE_FLOAT32;
  const Decoder<T, Bits> decoder(args.matrix.zero);
  Sums sums = {};
  for (int64_t step = first; step < last; step++) {
    copies_wait<S::kStages - 2>();
    __syncthreads();
    bring(step + S::kStages - 1);  // into the stage of the previous step, which all threads have finished reading
    if (!there) continue;
    if (scales_of_step(args.matrix) == 2) {
      multiply_step<T, Bits, RowWarps, Offsets, 2>(stage_of(step), decoder, wide, sums);
    } else {
      multiply_step<T, Bits, RowWarps, Offsets, 1>(stage_of(step), decoder, wide, sums);
    }
  }
  if (there) put_sums<T>(args, first_output, first_row, sums);
}

// Sum x over the inputs of a scale. Grid: (row), to whole blocks: rows that are not there sum to zero.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    sum_inputs_kernel(const __grid_constant__ CoreQuantizedLinear args, bool packed) {
  constexpr int kTogether = 8;  // inputs of a thread
  const QuantizedScratch scratch(args.matrix, args.rows);
  const int across = kStepInputs / scales_of_step(args.matrix) / kTogether;
  const int64_t row = blockIdx.x, inputs = args.matrix.inputs, chunks = scratch.units * across;
  const T* x = static_cast<const T*>(args.x) + row * inputs;
  for (int64_t first = 0; first < chunks; first += kThreads) {
    const int64_t chunk = first + threadIdx.x, k = chunk * kTogether;
    float sum = 0.0f;
    if (row < args.rows && packed && k < inputs) {
      const auto pack = *reinterpret_cast<const Pack<T, kTogether>*>(x + k);
#pragma unroll
      for (int i = 0; i < kTogether; i++) sum += to_float(pack.at[i]);
    } else if (row < args.rows) {
      for (int i = 0; i < kTogether && k + i < inputs; i++) sum += to_float(x[k + i]);
    }
    for (int distance = 1; distance < across; distance *= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
    if (chunk < chunks && chunk % across == 0) args.scratch[chunk / across * scratch.padded + row] = sum;
  }
}

template <typename T, int Bits, int RowWarps>
int launch_many(const CoreQuantizedLinear& args, bool packed, Stream stream) {
  using S = many::Shape<Bits, RowWarps>;
  const int64_t tiles = (args.matrix.outputs + kTileOutputs - 1) / kTileOutputs;
  const dim3 grid((tiles + S::kTiles - 1) / S::kTiles * ((args.rows + S::kRows - 1) / S::kRows), args.splits);
  const auto kernel =
      args.matrix.offsets != 0 ? many_rows_kernel<T, Bits, RowWarps, true> : many_rows_kernel<T, Bits, RowWarps, false>;
  return launch(kernel, grid, dim3(kThreads), S::kStages * S::kStageBytes, stream, args, packed);
}

// Up to these rows, a block has one warp along them.
constexpr int64_t kNarrow = many::kWarpRows;

template <typename T, int Bits>
int by_rows(const CoreQuantizedLinear& args, bool packed, Stream stream) {
  return args.rows <= kNarrow ? launch_many<T, Bits, 1>(args, packed, stream)
                              : launch_many<T, Bits, 2>(args, packed, stream);
}

}  // namespace

template <typename T>
int many_rows(const CoreQuantizedLinear& args, Stream stream) {
  const bool packed = args.matrix.inputs % 8 == 0 && in_packs({args.x});
  const QuantizedScratch scratch(args.matrix, args.rows);
  if (scratch.units != 0) {
    const int error = launch(sum_inputs_kernel<T>, dim3(scratch.padded), dim3(kThreads), 0, stream, args, packed);
    if (error != 0) return error;
  }
  return args.matrix.bits == 4 ? by_rows<T, 4>(args, packed, stream) : by_rows<T, 8>(args, packed, stream);
}
template int many_rows<BFloat16>(const CoreQuantizedLinear&, Stream);
template int many_rows<Float16>(const CoreQuantizedLinear&, Stream);

int64_t many_rows_splits(const QuantizedLayout& layout, int64_t rows, int32_t multiprocessors) {
  constexpr int64_t kFewestSteps = 2 * many::kMostStages;
  const int64_t row_warps = rows <= kNarrow ? 1 : 2, outputs = many::kWarps / row_warps * many::kWarpOutputs;
  const int64_t tiles = (layout.tiles * kTileOutputs + outputs - 1) / outputs;
  const int64_t blocks = tiles * ((rows + row_warps * many::kWarpRows - 1) / (row_warps * many::kWarpRows));
  return std::min(multiprocessors / blocks, layout.steps / kFewestSteps);
}

}  // namespace core
