// Decode attention, one query row per sequence: warps share the chunks of a part, and a second kernel joins the parts.
#include <cstdint>

#include "common/status.h"
#include "cuda/attention/decode_tile.h"
#include "cuda/hadamard.h"
#include "cuda/ops.h"

namespace core {
namespace decode {
namespace {

constexpr int kWarps = 4;

// ---- the parts of warps, and of splits ----

struct WarpSums {
  float most[kWarps][kTileHeads], sum[kWarps][kTileHeads], middle[kWarps][kTileHeads];
};

// Largest score of a head over all warps.
__device__ inline float most_of(const WarpSums& sums, int head) {
  float most = -INFINITY;
#pragma unroll
  for (int warp = 0; warp < kWarps; warp++) most = fmaxf(most, sums.most[warp][head]);
  return most;
}

// The sums of all warps for a head: of weights, and of the output's entries lane, lane + 32 and so on.
template <int D>
struct Joined {
  static constexpr int kEntries = (D + kWarpSize - 1) / kWarpSize;

  float most, sum = 0.0f;
  float out[kEntries] = {};

  __device__ Joined(const WarpSums& sums, const float* outputs, int head) : most(most_of(sums, head)) {
    const float base = most == -INFINITY ? 0.0f : most;
#pragma unroll
    for (int warp = 0; warp < kWarps; warp++) {
      const float factor = exp2f(sums.most[warp][head] - base), middle = sums.middle[warp][head];
      const float* entries = outputs + (warp * kTileHeads + head) * D;
      sum += factor * sums.sum[warp][head];
#pragma unroll
      for (int k = 0; k < kEntries; k++) out[k] += factor * (there(k) ? entries[entry(k)] + middle : 0.0f);
    }
  }

  static __device__ int entry(int k) { return static_cast<int>(threadIdx.x) % kWarpSize + k * kWarpSize; }
  static __device__ bool there(int k) { return D % kWarpSize == 0 || entry(k) < D; }

  // Values are Hadamard rotated: rotate the output back.
  __device__ void gather_back() {
    constexpr int kBlock = D & -D;
    hadamard<1, kWarpSize>(out, kBlock);
#pragma unroll
    for (float& mine : out) mine *= 1.0f / kBlock;
  }

  __device__ void put(const CoreDecodeAttention& args, int64_t row) const {
    const float whole = sum + sink_weight(args.sinks, static_cast<int>(row % args.heads), most);
#pragma unroll
    for (int k = 0; k < kEntries; k++) {
      const float result = sum == 0.0f ? 0.0f : out[k] / whole;
      if (there(k)) static_cast<BFloat16*>(args.out)[row * D + entry(k)] = from_float<BFloat16>(result);
    }
  }

  __device__ void leave(const CoreDecodeAttention& args, int64_t part) const {
#pragma unroll
    for (int k = 0; k < kEntries; k++) {
      if (there(k)) args.parts[part * D + entry(k)] = out[k];
    }
    if (entry(0) != 0) return;
    args.part_sums[part * 2] = most;
    args.part_sums[part * 2 + 1] = sum;
  }
};

// One warp per head.
template <typename Format, int D>
__device__ void join_warps(const CoreDecodeAttention& args, const Task& task, const WarpSums& sums,
                           const float* outputs) {
  for (int head = static_cast<int>(threadIdx.x) / kWarpSize; head < task.heads; head += kWarps) {
    Joined<D> joined(sums, outputs, head);
    if constexpr (Format::kSpread) joined.gather_back();
    const int64_t row = task.row(args, head);
    if (args.splits == 1) {
      joined.put(args, row);
    } else {
      joined.leave(args, row * args.splits + task.split);
    }
  }
}

// The running state of a warp, and the lane's position.
template <typename Format, int D>
struct State {
  int g, t;
  Softmax<Format> softmax;
  Output<D> o = {};

  __device__ State() : g(threadIdx.x % kWarpSize / 4), t(threadIdx.x % 4) {}
};

// P^T of a chunk from its products S; earlier sums are rescaled to the new maximum.
template <typename Format, int D>
__device__ void weigh(const CoreDecodeAttention& args, const Chunk<Format>& chunk, const Scales<Format>& scales,
                      float query_sum, const float (&s)[2][4], State<Format, D>& state, uint32_t (&p)[2]) {
  const Scores scores = take_scores(args, chunk, scales, query_sum, state.t, s);
  rescale<D>(raise(scores, state.softmax), state.t, state.o);
  take_weights(scores, state.softmax, p);
}

// Values are loaded while scores are computed, if there are enough registers.
template <typename Format, int D>
constexpr bool kValuesEarly = D * Format::kBits <= 128 * 16;

template <typename Format, int D>
__device__ void attend(const CoreDecodeAttention& args, const Task& task, State<Format, D>& state) {
  const Query<D> query(args, task, state.g, state.t);
  const Table table(args, task.sequence);
  for (int number = task.first_chunk + static_cast<int>(threadIdx.x) / kWarpSize; number < task.end_chunk;
       number += kWarps) {
    const Chunk<Format> chunk(args, task, table, number);
    const Scales<Format> scales(chunk, state.t);
    float s[2][4] = {};
    uint32_t p[2];
    multiply_keys<Format, D>(query, chunk, state.g, state.t, s);
    if constexpr (kValuesEarly<Format, D>) {
      const Values<Format, D> values(chunk, state.g, state.t);
      weigh(args, chunk, scales, query.sum, s, state, p);
      add_values(values, p, state.g, state.o);
    } else {
      weigh(args, chunk, scales, query.sum, s, state, p);
      add_values(Values<Format, D>(chunk, state.g, state.t), p, state.g, state.o);
    }
  }
}

// Minimum number of thread blocks per multiprocessor.
template <int D>
constexpr int kTogether = D <= 128 ? 3 : 2;

// Store the warp's part for the other warps to read.
template <typename Format, int D>
__device__ void put_part(State<Format, D>& state, WarpSums& sums, float* outputs) {
  const int warp = threadIdx.x / kWarpSize;
  const float sum = quad_sum(state.softmax.sum), middle = quad_sum(state.softmax.middle);
  if (state.t == 0) {
    sums.most[warp][state.g] = state.softmax.most;
    sums.sum[warp][state.g] = sum;
    sums.middle[warp][state.g] = middle;
  }
  if constexpr (kHasCodes<Format>) rescale<D>(state.softmax.product_factor(), state.t, state.o);
  put_output<D>(state.o, state.g, state.t, outputs + warp * kTileHeads * D);
}

template <typename Format, int D>
__global__ void __launch_bounds__(kWarps* kWarpSize, kTogether<D>)
    decode_attention_kernel(const __grid_constant__ CoreDecodeAttention args) {
  SHARED_ARRAY(WarpSums, sums, 1);
  DYNAMIC_SHARED(float, outputs);  // [kWarps, kTileHeads, D]
  State<Format, D> state;
  attend(args, Task(args), state);
  put_part(state, *sums, outputs);
  __syncthreads();
  join_warps<Format, D>(args, Task(args), *sums, outputs);  // rebuilt, so that it does not occupy registers until then
}

// Join the splits of one row. One thread per entry.
__global__ void __launch_bounds__(256) join_splits_kernel(const __grid_constant__ CoreDecodeAttention args) {
  const int64_t row = int64_t{blockIdx.y} * args.heads + blockIdx.x;
  const float* sums = args.part_sums + row * args.splits * 2;
  float most = -INFINITY, sum = 0.0f, out = 0.0f;
  for (int split = 0; split < args.splits; split++) most = fmaxf(most, sums[split * 2]);
  const float base = most == -INFINITY ? 0.0f : most;
  for (int split = 0; split < args.splits; split++) {
    const float factor = exp2f(sums[split * 2] - base);
    sum += factor * sums[split * 2 + 1];
    out += factor * args.parts[(row * args.splits + split) * blockDim.x + threadIdx.x];
  }
  const float whole = sum + sink_weight(args.sinks, static_cast<int>(blockIdx.x), most);
  const float result = sum == 0.0f ? 0.0f : out / whole;
  static_cast<BFloat16*>(args.out)[row * blockDim.x + threadIdx.x] = from_float<BFloat16>(result);
}

template <typename Format, int D>
CoreStatus launch_decode(const CoreDecodeAttention& args, Stream stream) {
  const dim3 grid(args.splits, args.blocks.kv_heads * tiles_of(args), args.sequences);
  constexpr int kSharedBytes = kWarps * kTileHeads * D * static_cast<int>(sizeof(float));
  const auto kernel = decode_attention_kernel<Format, D>;
  const int error = launch(kernel, grid, dim3(kWarps * kWarpSize), kSharedBytes, stream, args);
  if (error != 0 || args.splits == 1) return device_status(error);
  return device_status(launch(join_splits_kernel, dim3(args.heads, args.sequences), dim3(D), 0, stream, args));
}

template <typename Format>
CoreStatus launch_head_dim(const CoreDecodeAttention& args, Stream stream) {
  switch (args.blocks.head_dim) {
    case 64:
      return launch_decode<Format, 64>(args, stream);
    case 80:
      return launch_decode<Format, 80>(args, stream);
    case 96:
      return launch_decode<Format, 96>(args, stream);
    case 128:
      return launch_decode<Format, 128>(args, stream);
    default:
      return launch_decode<Format, 256>(args, stream);
  }
}

}  // namespace
}  // namespace decode

CoreStatus decode_attention(const CoreDecodeAttention& args, Stream stream) {
  if (args.sequences == 0) return CORE_OK;
  switch (args.blocks.kv) {
    case CORE_KV_INT8:
      return decode::launch_head_dim<Int8Kv>(args, stream);
    case CORE_KV_UINT4:
      return decode::launch_head_dim<Uint4Kv>(args, stream);
    default:
      return decode::launch_head_dim<Bf16Kv>(args, stream);
  }
}

}  // namespace core
