// RMSNorm and RoPE of queries and keys, and storage of keys and values. One warp per head of a token.
#include <cstdint>

#include "common/status.h"
#include "cuda/hadamard.h"
#include "cuda/kv/kv.h"
#include "cuda/ops.h"
#include "cuda/reduce.h"

namespace core {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxDim = 256;
constexpr int kMaxPairs = kMaxDim / 2 / kWarpSize;  // of neighbouring entries that a lane holds

__device__ inline float sum_of(float a, float b) {
  return a + b;
}

__device__ inline float smaller_of(float a, float b) {
  return fminf(a, b);
}

__device__ inline float larger_of(float a, float b) {
  return fmaxf(a, b);
}

// One head of a token: of queries, keys or values, in this order.
struct Head {
  int64_t token;
  int number;
  bool is_query, is_key;

  __device__ Head(const CoreAppendKv& args, int64_t index) {
    const int each = args.heads + 2 * args.blocks.kv_heads;
    token = index / each;
    number = static_cast<int>(index % each);
    is_query = number < args.heads;
    if (!is_query) number -= args.heads;
    is_key = !is_query && number < args.blocks.kv_heads;
    if (!is_query && !is_key) number -= args.blocks.kv_heads;
  }

  __device__ const uint32_t* source(const CoreAppendKv& args) const {
    const void* rows = is_query ? args.q : is_key ? args.k : args.v;
    const int64_t stride = is_query ? args.q_stride : is_key ? args.k_stride : args.v_stride;
    const auto* row = static_cast<const BFloat16*>(rows) + token * stride;
    return reinterpret_cast<const uint32_t*>(row + number * args.blocks.head_dim);
  }

  __device__ const BFloat16* norm(const CoreAppendKv& args) const {
    return static_cast<const BFloat16*>(is_query ? args.q_norm : is_key ? args.k_norm : nullptr);
  }
};

__device__ inline float low_of(uint32_t pair) {
  return __uint_as_float(pair << 16);
}

__device__ inline float high_of(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// Load a head as float32 into memory that all lanes read afterwards; apply RMSNorm if there is a weight.
__device__ void take_head(const CoreAppendKv& args, const Head& head, float* entries) {
  const int lane = threadIdx.x % kWarpSize, pairs = args.blocks.head_dim / 2;
  const uint32_t* source = head.source(args);
  float squares = 0.0f;
  for (int i = lane; i < pairs; i += kWarpSize) {
    const uint32_t pair = source[i];
    entries[2 * i] = low_of(pair);
    entries[2 * i + 1] = high_of(pair);
    squares += low_of(pair) * low_of(pair) + high_of(pair) * high_of(pair);
  }
  if (const BFloat16* weight = head.norm(args)) {
    const float scale =
        inverse_sqrt(warp_reduce(squares, sum_of) / static_cast<float>(args.blocks.head_dim) + args.eps);
    for (int i = lane; i < pairs; i += kWarpSize) {
      entries[2 * i] *= scale * to_float(weight[2 * i]);
      entries[2 * i + 1] *= scale * to_float(weight[2 * i + 1]);
    }
  }
  __syncwarp();
}

// Entry i of a head, rotated.
__device__ float turned(const CoreAppendKv& args, const float* entries, int64_t position, int i) {
  if (i >= args.rotary_dim) return entries[i];
  const int half = args.rotary_dim / 2, angle = i % half;
  const float cos = args.cos[position * half + angle], sin = args.sin[position * half + angle];
  return i < half ? entries[i] * cos - entries[i + half] * sin : entries[i] * cos + entries[i - half] * sin;
}

// The pairs of entries that this lane stores: pairs lane, lane + 32 and so on.
struct Pairs {
  float first[kMaxPairs] = {}, second[kMaxPairs] = {};
};

__device__ Pairs turned_pairs(const CoreAppendKv& args, const Head& head, const float* entries) {
  const bool turns = (head.is_query || head.is_key) && args.rotary_dim > 0;
  const int64_t position = turns ? args.positions[head.token] : 0;
  Pairs pairs;
#pragma unroll
  for (int k = 0; k < kMaxPairs; k++) {
    const int i = threadIdx.x % kWarpSize + k * kWarpSize;
    if (i >= args.blocks.head_dim / 2) continue;
    pairs.first[k] = turns ? turned(args, entries, position, 2 * i) : entries[2 * i];
    pairs.second[k] = turns ? turned(args, entries, position, 2 * i + 1) : entries[2 * i + 1];
  }
  return pairs;
}

__device__ void hadamard_pairs(Pairs& pairs, int block, float factor) {
  float entries[2 * kMaxPairs];
#pragma unroll
  for (int k = 0; k < kMaxPairs; k++) {
    entries[2 * k] = pairs.first[k];
    entries[2 * k + 1] = pairs.second[k];
  }
  hadamard<2, kWarpSize>(entries, block);
#pragma unroll
  for (int k = 0; k < kMaxPairs; k++) {
    pairs.first[k] = entries[2 * k] * factor;
    pairs.second[k] = entries[2 * k + 1] * factor;
  }
}

__device__ void put_numbers(const Pairs& pairs, int dim, void* row) {
#pragma unroll
  for (int k = 0; k < kMaxPairs; k++) {
    const int i = threadIdx.x % kWarpSize + k * kWarpSize;
    if (i < dim / 2) static_cast<uint32_t*>(row)[i] = pair_of<BFloat16>(pairs.first[k], pairs.second[k]);
  }
}

// Return the scale of the head's entries to every lane.
template <typename Format>
__device__ CodeScale scale_of(const Pairs& pairs, int dim) {
  float lowest = INFINITY, highest = -INFINITY;
#pragma unroll
  for (int k = 0; k < kMaxPairs; k++) {
    if (static_cast<int>(threadIdx.x % kWarpSize) + k * kWarpSize >= dim / 2) continue;
    lowest = fminf(lowest, fminf(pairs.first[k], pairs.second[k]));
    highest = fmaxf(highest, fmaxf(pairs.first[k], pairs.second[k]));
  }
  return scale_between(warp_reduce(lowest, smaller_of), warp_reduce(highest, larger_of), Format::kMost);
}

// Store the codes of a pair. For Uint4Kv the lanes of four neighbouring pairs combine theirs into a word.
template <typename Format>
__device__ void put_pair(uint32_t first, uint32_t second, int i, bool there, unsigned char* row) {
  if constexpr (Format::kBits == 8) {
    if (there) reinterpret_cast<uint16_t*>(row)[i] = static_cast<uint16_t>(first | second << 8);
  } else {
    uint32_t word = (first | second << 16) << (i % 4 * 4);
    word |= __shfl_xor_sync(kAllLanes, word, 1);
    word |= __shfl_xor_sync(kAllLanes, word, 2);
    if (there && i % 4 == 0) reinterpret_cast<uint32_t*>(row)[i / 4] = word;
  }
}

template <typename Format>
__device__ void put_codes(const Pairs& pairs, int dim, unsigned char* row, CodeScale* place) {
  const CodeScale scale = scale_of<Format>(pairs, dim);
  const int lane = threadIdx.x % kWarpSize;
  if (lane == 0) *place = scale;
#pragma unroll
  for (int k = 0; k < kMaxPairs; k++) {
    if (k * kWarpSize >= dim / 2) break;
    const int i = lane + k * kWarpSize;
    const bool there = i < dim / 2;
    const uint32_t first = there ? nearest_code(pairs.first[k], scale, Format::kMost) : 0;
    const uint32_t second = there ? nearest_code(pairs.second[k], scale, Format::kMost) : 0;
    put_pair<Format>(first, second, i, there, row);
  }
}

template <typename Format>
__device__ void store(const CoreAppendKv& args, const Head& head, const Pairs& pairs) {
  const int32_t slot = args.slots[head.token];
  if (slot < 0) return;
  const KvPlaces<Format> places{args.blocks};
  const Side side = head.is_key ? Side::kKeys : Side::kValues;
  const int32_t block = slot / args.blocks.block_size, in_block = slot % args.blocks.block_size;
  unsigned char* row = places.row(block, side, head.number, in_block);
  if constexpr (kHasCodes<Format>) {
    put_codes<Format>(pairs, args.blocks.head_dim, row, places.scale(block, side, head.number, in_block));
  } else {
    put_numbers(pairs, args.blocks.head_dim, row);
  }
}

template <typename Format>
__global__ void __launch_bounds__(kWarps* kWarpSize) append_kv_kernel(const __grid_constant__ CoreAppendKv args) {
  SHARED_ARRAY(float, entries, kWarps* kMaxDim);
  begin_kernel();
  const int warp = threadIdx.x / kWarpSize;
  const int64_t index = int64_t{blockIdx.x} * kWarps + warp;
  if (index >= int64_t{args.tokens} * (args.heads + 2 * args.blocks.kv_heads)) return;
  const Head head(args, index);
  take_head(args, head, entries + warp * kMaxDim);
  Pairs pairs = turned_pairs(args, head, entries + warp * kMaxDim);
  if constexpr (Format::kSpread) {
    const int block = static_cast<int>(hadamard_block(args.blocks.head_dim));
    hadamard_pairs(pairs, block, head.is_query ? 1.0f / static_cast<float>(block) : 1.0f);
  }
  if (!head.is_query) return store<Format>(args, head, pairs);
  const int64_t row = head.token * args.heads + head.number;
  put_numbers(pairs, args.blocks.head_dim, static_cast<BFloat16*>(args.q_out) + row * args.blocks.head_dim);
}

template <typename Format>
CoreStatus launch_append(const CoreAppendKv& args, Stream stream) {
  const int64_t warps = int64_t{args.tokens} * (args.heads + 2 * args.blocks.kv_heads);
  const dim3 grid(static_cast<unsigned>((warps + kWarps - 1) / kWarps));
  return device_status(launch_early(append_kv_kernel<Format>, grid, dim3(kWarps * kWarpSize), 0, stream, args));
}

}  // namespace

CoreStatus append_kv(const CoreAppendKv& args, Stream stream) {
  if (args.tokens == 0) return CORE_OK;
  switch (args.blocks.kv) {
    case CORE_KV_INT8:
      return launch_append<Int8Kv>(args, stream);
    case CORE_KV_UINT4:
      return launch_append<Uint4Kv>(args, stream);
    default:
      return launch_append<Bf16Kv>(args, stream);
  }
}

}  // namespace core
