// Decode attention, one query row per sequence: warps share the chunks of a part, and the thread block that is the last
// of a sequence joins its parts. Thread blocks stay, and take task after task.
#include <cstdint>

#include "common/status.h"
#include "cuda/attention/decode_tile.h"
#include "cuda/hadamard.h"
#include "cuda/ops.h"

namespace core {
namespace decode {
namespace {

constexpr int kWarps = 4;

// ---- the parts of warps, and of sequences ----

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

// The sums of all warps, or of all parts, for a head: of weights, and of the output's entries lane, lane + 32 and so
// on.
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

  // The parts of a row, which other thread blocks left.
  __device__ Joined(const CoreDecodeAttention& args, int64_t row, int parts) : most(-INFINITY) {
    const float* sums = args.part_sums + row * args.most_parts * 2;
    const float* entries = args.parts + row * args.most_parts * D;
    for (int part = entry(0); part < parts; part += kWarpSize) most = fmaxf(most, sums[part * 2]);
    most = warp_reduce(most, [](float a, float b) { return fmaxf(a, b); });
    const float base = most == -INFINITY ? 0.0f : most;
    for (int part = 0; part < parts; part++) {
      const float factor = exp2f(sums[part * 2] - base);
      sum += factor * sums[part * 2 + 1];
#pragma unroll
      for (int k = 0; k < kEntries; k++) out[k] += there(k) ? factor * entries[part * D + entry(k)] : 0.0f;
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
    if (task.range.parts == 1) {
      joined.put(args, row);
    } else {
      joined.leave(args, row * args.most_parts + task.range.part);
    }
  }
}

// True, in all threads, if the others that share this task's sequence and heads have left their parts.
__device__ inline bool is_last(const CoreDecodeAttention& args, const Task& task) {
  SHARED_ARRAY(int, last, 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t* arrived = args.arrived + task.row(args, 0);
    __threadfence();  // this block's part before its arrival, and the others' arrivals before their parts are read
    *last = atomicAdd(arrived, 1) == task.range.parts - 1;
    if (*last) *arrived = 0;
    __threadfence();
  }
  __syncthreads();
  return *last;
}

// One warp per head.
template <int D>
__device__ void join_parts(const CoreDecodeAttention& args, const Task& task) {
  for (int head = static_cast<int>(threadIdx.x) / kWarpSize; head < task.heads; head += kWarps) {
    const int64_t row = task.row(args, head);
    Joined<D>(args, row, task.range.parts).put(args, row);
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
  const Table table(args, task.range.table);
  const int end = (task.range.end + kChunk - 1) / kChunk;
  for (int number = task.range.first / kChunk + static_cast<int>(threadIdx.x) / kWarpSize; number < end;
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
  begin_kernel();
  const int count = args.list[1] * sharers_of(args);
  for (int number = static_cast<int>(blockIdx.x); number < count; number += static_cast<int>(gridDim.x)) {
    State<Format, D> state;
    attend(args, Task(args, number), state);
    put_part(state, *sums, outputs);
    __syncthreads();
    const Task task(args, number);  // rebuilt, so that it does not occupy registers until then
    join_warps<Format, D>(args, task, *sums, outputs);
    if (task.range.parts > 1 && is_last(args, task)) join_parts<D>(args, task);
    __syncthreads();  // the next task writes sums and outputs again
  }
}

template <typename Format, int D>
CoreStatus launch_decode(const CoreDecodeAttention& args, Stream stream) {
  constexpr int kThreads = kWarps * kWarpSize, kSharedBytes = kWarps * kTileHeads * D * static_cast<int>(sizeof(float));
  const auto kernel = decode_attention_kernel<Format, D>;
  const dim3 grid(args.multiprocessors * blocks_together<decode_attention_kernel<Format, D>>(kThreads, kSharedBytes));
  return device_status(launch_early(kernel, grid, dim3(kThreads), kSharedBytes, stream, args));
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
    case 192:
      return launch_decode<Format, 192>(args, stream);
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
