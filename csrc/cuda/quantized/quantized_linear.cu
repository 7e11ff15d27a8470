// Products of few rows with a quantized matrix, on tensor cores: outputs are the rows of fragments A, rows of x the
// columns of fragments B. Codes are multiplied unscaled; the sums of a group are scaled in float32.
#include <algorithm>
#include <cstdint>

#include "common/status.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/quantized/checks_quantized.h"
#include "cuda/quantized/codes.h"
#include "cuda/quantized/stage.h"

namespace core {
namespace {

constexpr int kOutputTiles = kTileOutputs / 16;

// The scales of a lane's outputs 16 m + g and 16 m + 8 + g: neighbours in the order of layout.h.
__device__ inline float2 scales_of(const unsigned char* scales, int group, int g, int m, bool wide) {
  const int place = group * kTileOutputs / 2 + g * 4 + m;
  if (wide) return reinterpret_cast<const float2*>(scales)[place];
  const auto pack = reinterpret_cast<const Pack<Float16, 2>*>(scales)[place];
  return make_float2(to_float(pack.at[0]), to_float(pack.at[1]));
}

template <int XTiles>
using Sums = float[kOutputTiles][XTiles][4];

// Fragments B of eight rows of x and 32 inputs, and the sums of x over them: of the two rows that a lane has sums of.
struct XFragments {
  uint32_t first[2];
  uint32_t second[2];
  float sums[2];
};

template <typename T, int Bits, int XTiles, bool Offsets>
__device__ XFragments x_fragments(const Stage<Bits, XTiles>& stage, int half, int n) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  uint32_t x[4];
  load_matrices(x, stage.x(warp % Shape<Bits, XTiles>::kDeep, n * 8 + lane % 8, half * 4 + lane / 8));
  XFragments found = {{x[0], x[1]}, {x[2], x[3]}, {}};
  if constexpr (Offsets) {
    const uint32_t one = pair_of<T>(1.0f), ones[4] = {one, one, one, one};
    float sums[4] = {};
    mma<T>(sums, ones, found.first);
    mma<T>(sums, ones, found.second);
    found.sums[0] = sums[0];
    found.sums[1] = sums[1];
  }
  return found;
}

// Add the products of 32 inputs of a step, which share their scales.
template <typename T, int Bits, int XTiles, bool Offsets>
__device__ void multiply_half(const Stage<Bits, XTiles>& stage, const CoreQuantized& matrix,
                              const Decoder<T, Bits>& decoder, int half, Sums<XTiles>& sums) {
  using Words = Pack<uint32_t, Bits / 2>;  // of 32 inputs
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int group = matrix.group == 32 ? half : 0;
  const bool wide = matrix.scales == CORE_FLOAT32;
  XFragments x[XTiles];
#pragma unroll
  for (int n = 0; n < XTiles; n++) x[n] = x_fragments<T, Bits, XTiles, Offsets>(stage, half, n);
#pragma unroll
  for (int m = 0; m < kOutputTiles; m++) {
    const int chunk = Bits == 4 ? m : m * 2 + half;
    const unsigned char* codes = stage.codes(warp) + (chunk * kWarpSize + lane) * kChunkBytes;
    const Words words = reinterpret_cast<const Words*>(codes)[Bits == 4 ? half : 0];
    uint32_t a[2][4];
    decoder.decode(words.at, a[0]);
    decoder.decode(words.at + Bits / 4, a[1]);
    const float2 scales = scales_of(stage.scales(warp), group, lane / 4, m, wide);
    float2 offsets = {};
    if constexpr (Offsets) offsets = scales_of(stage.offsets(warp), group, lane / 4, m, wide);
#pragma unroll
    for (int n = 0; n < XTiles; n++) {
      float products[4] = {};
      mma<T>(products, a[0], x[n].first);
      mma<T>(products, a[1], x[n].second);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        sums[m][n][i] += (i < 2 ? scales.x : scales.y) * products[i];
        if constexpr (Offsets) sums[m][n][i] += (i < 2 ? offsets.x : offsets.y) * x[n].sums[i % 2];
      }
    }
  }
}

// Add the sums of warps that share outputs to those of the first of them, in a fixed order.
template <int Bits, int XTiles>
__device__ void join_warps(float* scratch, Sums<XTiles>& sums) {
  using S = Shape<Bits, XTiles>;
  constexpr int kSums = kOutputTiles * XTiles * 4;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  float* mine = scratch + warp / S::kDeep * kSums * kWarpSize + lane;
  float* flat = &sums[0][0][0];
  for (int other = 1; other < S::kDeep; other++) {
    __syncthreads();
    if (warp % S::kDeep == other) {
#pragma unroll
      for (int i = 0; i < kSums; i++) mine[i * kWarpSize] = flat[i];
    }
    __syncthreads();
    if (warp % S::kDeep == 0) {
#pragma unroll
      for (int i = 0; i < kSums; i++) flat[i] += mine[i * kWarpSize];
    }
  }
}

// Store the sums of a warp: in out, or with several splits in this split's part of the scratch buffer.
template <typename T, int XTiles>
__device__ void put_sums(const CoreQuantizedLinear& args, int64_t tile, const Sums<XTiles>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, g = lane / 4, t = lane % 4;
  const int64_t outputs = args.matrix.outputs;
  const int64_t first_row = int64_t{blockIdx.z} * XTiles * 8;
  float* scratch = args.scratch + blockIdx.y * args.rows * outputs;
  const T* bias = static_cast<const T*>(args.bias);
#pragma unroll
  for (int m = 0; m < kOutputTiles; m++) {
#pragma unroll
    for (int n = 0; n < XTiles; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int64_t output = tile * kTileOutputs + m * 16 + i / 2 * 8 + g, row = first_row + n * 8 + 2 * t + i % 2;
        if (output >= outputs || row >= args.rows) continue;
        const int64_t place = row * outputs + output;
        if (args.splits == 1) {
          const float added = bias != nullptr ? to_float(bias[output]) : 0.0f;
          static_cast<T*>(args.out)[place] = from_float<T>(sums[m][n][i] + added);
        } else {
          scratch[place] = sums[m][n][i];
        }
      }
    }
  }
}

// Grid: (outputs, split, rows of x). Each block takes some rounds of inputs.
template <typename T, int Bits, int XTiles, bool Offsets>
__global__ void __launch_bounds__(kLinearThreads, Shape<Bits, XTiles>::kTogether)
    quantized_linear_kernel(const __grid_constant__ CoreQuantizedLinear args, bool packed) {
  using S = Shape<Bits, XTiles>;
  DYNAMIC_SHARED(unsigned char, shared);
  const QuantizedLayout layout(args.matrix);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t tile = int64_t{blockIdx.x} * S::kAcross + warp / S::kDeep;
  const int64_t rounds = (layout.steps + S::kDeep - 1) / S::kDeep, each = (rounds + gridDim.y - 1) / gridDim.y;
  const int64_t first = blockIdx.y * each, last = min(rounds, first + each);
  const auto stage_of = [&](int64_t round) {
    return Stage<Bits, XTiles>{shared + (round - first) % S::kStages * S::kStageBytes};
  };
  const auto bring = [&](int64_t round) {
    if (round < last) {
      bring_codes(stage_of(round), args.matrix, layout, tile, round * S::kDeep + warp % S::kDeep);
      bring_x<T>(stage_of(round), args, round, packed);
    }
    copies_commit();
  };
  for (int ahead = 0; ahead < S::kStages - 1; ahead++) bring(first + ahead);
  const Decoder<T, Bits> decoder(args.matrix.zero);
  Sums<XTiles> sums = {};
  for (int64_t round = first; round < last; round++) {
    copies_wait<S::kStages - 2>();
    __syncthreads();
    bring(round + S::kStages - 1);  // into the stage of the previous round, which all threads have finished reading
#pragma unroll
    for (int half = 0; half < 2; half++) {
      multiply_half<T, Bits, XTiles, Offsets>(stage_of(round), args.matrix, decoder, half, sums);
    }
  }
  copies_wait<0>();
  if constexpr (S::kDeep > 1) join_warps<Bits, XTiles>(reinterpret_cast<float*>(shared), sums);
  if (warp % S::kDeep == 0) put_sums<T, XTiles>(args, tile, sums);
}

constexpr int kJoinThreads = 256;

// Add the sums of the splits, in a fixed order.
template <typename T>
__global__ void __launch_bounds__(kJoinThreads) join_splits_kernel(const __grid_constant__ CoreQuantizedLinear args) {
  const int64_t count = args.rows * args.matrix.outputs, place = int64_t{blockIdx.x} * kJoinThreads + threadIdx.x;
  if (place >= count) return;
  float sum = 0.0f;
  for (int split = 0; split < args.splits; split++) sum += args.scratch[split * count + place];
  if (args.bias != nullptr) sum += to_float(static_cast<const T*>(args.bias)[place % args.matrix.outputs]);
  static_cast<T*>(args.out)[place] = from_float<T>(sum);
}

template <typename T, int Bits, int XTiles>
int launch_linear(const CoreQuantizedLinear& args, Stream stream) {
  using S = Shape<Bits, XTiles>;
  const int64_t tiles = (args.matrix.outputs + kTileOutputs - 1) / kTileOutputs;
  const dim3 grid((tiles + S::kAcross - 1) / S::kAcross, args.splits, (args.rows + S::kRows - 1) / S::kRows);
  const bool packed = args.matrix.inputs % 8 == 0 && in_packs({args.x});
  const auto kernel = args.matrix.offsets != 0 ? quantized_linear_kernel<T, Bits, XTiles, true>
                                               : quantized_linear_kernel<T, Bits, XTiles, false>;
  return launch(kernel, grid, dim3(kLinearThreads), S::kStages * S::kStageBytes, stream, args, packed);
}

template <typename T, int Bits>
int by_rows(const CoreQuantizedLinear& args, Stream stream) {
  if (args.rows <= 8) return launch_linear<T, Bits, 1>(args, stream);
  if (args.rows <= 16) return launch_linear<T, Bits, 2>(args, stream);
  return launch_linear<T, Bits, kMostXTiles>(args, stream);
}

template <typename T>
int linear(const CoreQuantizedLinear& args, Stream stream) {
  const int error = args.matrix.bits == 4 ? by_rows<T, 4>(args, stream) : by_rows<T, 8>(args, stream);
  if (error != 0 || args.splits == 1) return error;
  const int64_t blocks = (args.rows * args.matrix.outputs + kJoinThreads - 1) / kJoinThreads;
  return launch(join_splits_kernel<T>, dim3(blocks), dim3(kJoinThreads), 0, stream, args);
}

}  // namespace

CoreStatus quantized_linear(const CoreQuantizedLinear& args, Stream stream) {
  if (args.rows == 0) return CORE_OK;
  return device_status(args.matrix.dtype == CORE_BFLOAT16 ? linear<BFloat16>(args, stream)
                                                          : linear<Float16>(args, stream));
}

}  // namespace core

int32_t core_quantized_splits(const CoreQuantized* matrix, int64_t rows, int32_t multiprocessors) {
  constexpr int64_t kBlocksOfEach = 2, kFewestRounds = core::kMostStages;
  if (core::quantized_status(matrix) != CORE_OK || multiprocessors < 1) return 0;
  const core::QuantizedLayout layout(*matrix);
  const int64_t across = rows <= 16 ? 1 : 2, deep = core::kWarps / across, rows_of_block = core::kMostXTiles * 8;
  const int64_t tiles = (layout.tiles + across - 1) / across, rounds = (layout.steps + deep - 1) / deep;
  const int64_t blocks = tiles * std::max<int64_t>(1, (rows + rows_of_block - 1) / rows_of_block);
  const int64_t wanted = (multiprocessors * kBlocksOfEach + blocks - 1) / blocks;
  return static_cast<int32_t>(std::max<int64_t>(1, std::min(wanted, rounds / kFewestRounds)));
}
