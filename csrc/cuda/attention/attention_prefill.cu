// Causal attention of many rows of a sequence over its blocks: the online softmax of FlashAttention-2 (Dao, 2023), one
// thread block per 64 rows of a KV head. A row is one query head of one token, so that all heads of a group share the
// keys and values read. Keys of the next tile are loaded during the softmax of this one, and values during products.
#include <cstdint>

#include "common/status.h"
#include "cuda/attention/prefill_tile.h"
#include "cuda/hadamard.h"
#include "cuda/ops.h"

namespace core {
namespace prefill {
namespace {

// S = Q K^T of the warp's rows.
template <int D>
__device__ void multiply_keys(const BFloat16* q, const BFloat16* k, Sums<D>& s) {
  constexpr int kStride = kRowStride<D>;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    uint32_t a[4];
    load_matrices(a, q + (warp * 16 + lane % 16) * kStride + d + lane / 16 * 8);
#pragma unroll
    for (int n = 0; n < kKeys<D>; n += 16) {
      uint32_t b[4];
      load_matrices(b, k + (n + lane / 16 * 8 + lane % 8) * kStride + d + lane / 8 % 2 * 8);
      mma<BFloat16>(s[n / 8], a, {b[0], b[1]});
      mma<BFloat16>(s[n / 8 + 1], a, {b[2], b[3]});
    }
  }
}

// O += P V.
template <typename Number, int D>
__device__ void add_values(const Weights<D>& p, const BFloat16* v, Output<D>& o) {
  constexpr int kStride = kRowStride<D>;
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int n = 0; n < kKeys<D>; n += 16) {
#pragma unroll
    for (int d = 0; d < D; d += 16) {
      uint32_t b[4];
      load_matrices_transposed(b, v + (n + lane % 16) * kStride + d + lane / 16 * 8);
      mma<Number>(o[d / 8], p[n / 16], {b[0], b[1]});
      mma<Number>(o[d / 8 + 1], p[n / 16], {b[2], b[3]});
    }
  }
}

// Turn products into scores, times log2(e); scores of positions not visible to a row become -infinity.
template <typename Format, int D, bool AllSeen>
__device__ void take_scores(const CorePrefillAttention& args, const Task& task, const Rows& rows, int first_key,
                            const TileScales<D>& scales, Sums<D>& s) {
#pragma unroll
  for (int n = 0; n < kKeys<D> / 8; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int key = n * 8 + rows.t * 2 + i % 2, half = i / 2;
      float product = s[n][i];
      if constexpr (kHasCodes<Format>) {
        product = scales.keys[key].step * product + scales.keys[key].middle * rows.query_sum[half];
      }
      const bool seen = AllSeen || rows.sees(task, half, first_key + key);
      s[n][i] = seen ? score_of(product, args.scale, args.soft_cap) : -INFINITY;
    }
  }
}

// Update the maximum of one of the lane's rows, and rescale its earlier sums.
template <typename Format, int D>
__device__ void raise(const TileScales<D>& scales, int t, int half, const Sums<D>& s, Softmax<Format>& softmax,
                      Output<D>& o) {
  float most = -INFINITY, highest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kKeys<D> / 4; i++) {
    const float score = s[i / 2][half * 2 + i % 2];
    most = fmaxf(most, score);
    if constexpr (kHasCodes<Format>) highest = fmaxf(highest, score + scales.values[i / 2 * 8 + t * 2 + i % 2].level);
  }
  const float factor = softmax.raise(quad_max(most), kHasCodes<Format> ? quad_max(highest) : 0.0f);
#pragma unroll
  for (int d = 0; d < D / 8; d++) {
    o[d][half * 2] *= factor;
    o[d][half * 2 + 1] *= factor;
  }
}

// P of one of the lane's rows, as the left operand.
template <typename Format, int D>
__device__ void take_weights(const TileScales<D>& scales, int t, int half, const Sums<D>& s, Softmax<Format>& softmax,
                             Weights<D>& p) {
#pragma unroll
  for (int n = 0; n < kKeys<D> / 8; n++) {
    float factors[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      ValueScale value;
      if constexpr (kHasCodes<Format>) value = scales.values[n * 8 + t * 2 + i];
      factors[i] = softmax.add(s[n][half * 2 + i], value);
    }
    p[n / 2][n % 2 * 2 + half] = pair_of<ValueNumber<Format>>(factors[0], factors[1]);
  }
}

// Invert the Hadamard rotation of a row's output, which a quad holds.
template <int D>
__device__ void gather_back(float (&entries)[D / 4]) {
  constexpr int kBlock = D & -D;
  hadamard<2, 4>(entries, kBlock);
#pragma unroll
  for (float& entry : entries) entry *= 1.0f / kBlock;
}

template <typename Format, int D>
__device__ void put_output(const CorePrefillAttention& args, const Task& task, const Rows& rows,
                           const Softmax<Format> (&softmax)[2], const Output<D>& o) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float sum = quad_sum(softmax[half].sum), middle = quad_sum(softmax[half].middle);
    const float factor = softmax[half].product_factor();
    float entries[D / 4];
#pragma unroll
    for (int i = 0; i < D / 4; i++) entries[i] = o[i / 2][half * 2 + i % 2] * factor + middle;
    if constexpr (Format::kSpread) gather_back<D>(entries);
    const int row = rows.number(half);
    if (row >= task.rows) continue;
    const int64_t out_row = int64_t{task.token(row)} * args.heads + task.head(row);
    auto* out = reinterpret_cast<uint32_t*>(static_cast<BFloat16*>(args.out) + out_row * D);
    const float whole = sum + sink_weight(args.sinks, task.head(row), softmax[half].most);
#pragma unroll
    for (int d = 0; d < D / 8; d++) {
      out[d * 4 + rows.t] = pair_of<BFloat16>(entries[2 * d] / whole, entries[2 * d + 1] / whole);
    }
  }
}

template <typename Format, int D>
__global__ void __launch_bounds__(kThreads, 2)
    prefill_attention_kernel(const __grid_constant__ CorePrefillAttention args) {
  DYNAMIC_SHARED(BFloat16, scratch);
  const Tiles<D> tiles(scratch);
  begin_kernel();
  if (args.list[1] == 0) return;
  const Task task(args, Place(args));
  if (task.first_row >= task.rows) return;
  stage_queries<D>(args, task, tiles.queries);
  stage_keys<Format, D>(args, task, tiles, task.first_key());
  stage_values<Format, D>(args, task, tiles, task.first_key());
  Rows rows(task);
  Softmax<Format> softmax[2];
  Output<D> o = {};
  for (int key = task.first_key(); key < task.end_key; key += kKeys<D>) {
    const TileScales<D>& scales = tiles.scales(key);
    Sums<D> s = {};
    Weights<D> p;
    copies_wait<1>();
    __syncthreads();
    if (kHasCodes<Format> && key == task.first_key()) rows.add_queries<D>(tiles.queries);
    multiply_keys<D>(tiles.queries, tiles.keys, s);
    __syncthreads();
    stage_keys<Format, D>(args, task, tiles, key + kKeys<D>);
    if (task.all_see(key, key + kKeys<D> - 1)) {
      take_scores<Format, D, true>(args, task, rows, key, scales, s);
    } else {
      take_scores<Format, D, false>(args, task, rows, key, scales, s);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      raise<Format, D>(scales, rows.t, half, s, softmax[half], o);
      take_weights<Format, D>(scales, rows.t, half, s, softmax[half], p);
    }
    copies_wait<1>();
    __syncthreads();
    add_values<ValueNumber<Format>, D>(p, tiles.values, o);
    __syncthreads();
    stage_values<Format, D>(args, task, tiles, key + kKeys<D>);
  }
  put_output<Format, D>(args, task, rows, softmax, o);
}

template <typename Format, int D>
CoreStatus launch_prefill(const CorePrefillAttention& args, Stream stream) {
  const int64_t rows = int64_t{args.rows} * (args.heads / args.blocks.kv_heads);
  const dim3 grid(static_cast<unsigned>(rows / kTileRows + args.sequences), args.blocks.kv_heads);
  const auto kernel = prefill_attention_kernel<Format, D>;
  return device_status(launch_early(kernel, grid, dim3(kThreads), Tiles<D>::kBytes, stream, args));
}

template <typename Format>
CoreStatus launch_head_dim(const CorePrefillAttention& args, Stream stream) {
  switch (args.blocks.head_dim) {
    case 64:
      return launch_prefill<Format, 64>(args, stream);
    case 80:
      return launch_prefill<Format, 80>(args, stream);
    case 96:
      return launch_prefill<Format, 96>(args, stream);
    case 128:
      return launch_prefill<Format, 128>(args, stream);
    case 192:
      return launch_prefill<Format, 192>(args, stream);
    default:
      return launch_prefill<Format, 256>(args, stream);
  }
}

}  // namespace
}  // namespace prefill

CoreStatus prefill_attention(const CorePrefillAttention& args, Stream stream) {
  if (args.sequences == 0 || args.rows == 0) return CORE_OK;
  switch (args.blocks.kv) {
    case CORE_KV_INT8:
      return prefill::launch_head_dim<Int8Kv>(args, stream);
    case CORE_KV_UINT4:
      return prefill::launch_head_dim<Uint4Kv>(args, stream);
    default:
      return prefill::launch_head_dim<Bf16Kv>(args, stream);
  }
}

}  // namespace core
