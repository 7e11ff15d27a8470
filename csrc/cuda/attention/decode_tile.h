// Attention of one query row on tensor cores, straight from global memory: no shared memory and no transposes. A warp
// takes 16 tokens at a time, for up to 8 query heads of one KV head.
//
// S = Q K^T has the heads as rows, of which only the first 8 are used. Its sums, as they lie in registers, are the
// right operand of O^T = V^T P^T, whose rows are entries of the head. The entries of a head are permuted so that
// neighbouring entries belong to one lane: this does not change the sums, and the output is reordered at the end.
// Throughout, g and t are the lane's position in a fragment: lane = 4 g + t.
#pragma once

#include <cstdint>

#include "cuda/attention/attention.h"

namespace core::decode {

constexpr int kTileHeads = 8;

CORE_BOTH int tiles_of(const CoreDecodeAttention& args) {
  return (args.heads / args.blocks.kv_heads + kTileHeads - 1) / kTileHeads;
}

// Number of thread blocks that share a range of tokens, each for some of the query heads.
CORE_BOTH int sharers_of(const CoreDecodeAttention& args) {
  return args.blocks.kv_heads * tiles_of(args);
}

// What a thread block computes at once: some heads of a sequence, over a range of its tokens.
struct Task {
  CoreDecodeTask range;
  int kv_head;
  int first_head, heads;  // of all query heads

  __device__ Task(const CoreDecodeAttention& args, int number) {
    const int sharers = sharers_of(args), tiles = tiles_of(args), group = args.heads / args.blocks.kv_heads;
    range = args.tasks[args.list[0] + number / sharers];
    kv_head = number % sharers / tiles;
    const int tile = number % tiles;
    first_head = kv_head * group + tile * kTileHeads;
    heads = min(kTileHeads, group - tile * kTileHeads);
  }

  // Row of the output, and of the parts.
  __device__ int64_t row(const CoreDecodeAttention& args, int head) const {
    return int64_t{range.sequence} * args.heads + first_head + head;
  }
};

// ---- operands ----

// Entries of a row that a lane t of a quad multiplies: pairs 2 s and 2 s + 1 belong to step s of the product. Eight
// entries at a time, and four at last where the head dimension is no multiple of 32.
template <typename Format, int D>
__device__ void load_row(const unsigned char* row, int t, uint32_t (&pairs)[D / 8]) {
  constexpr int kWide = D / 32;
#pragma unroll
  for (int c = 0; c < kWide; c++) {
    const auto entries = load_entries<Format, 8>(row, c * 32 + t * 8);
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[c * 4 + i] = entries.at[i];
  }
  if constexpr (D % 32 != 0) {
    const auto entries = load_entries<Format, 4>(row, kWide * 32 + t * 4);
    pairs[kWide * 4] = entries.at[0];
    pairs[kWide * 4 + 1] = entries.at[1];
  }
}

// Queries of head g of the tile.
template <int D>
struct Query {
  uint32_t pairs[D / 8] = {};
  float sum = 0.0f;  // of all entries of the head

  __device__ Query(const CoreDecodeAttention& args, const Task& task, int g, int t) {
    if (g < task.heads) {
      const auto* row = static_cast<const BFloat16*>(args.q) + task.range.sequence * args.q_stride;
      load_row<Bf16Kv, D>(reinterpret_cast<const unsigned char*>(row + (task.first_head + g) * D), t, pairs);
    }
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
      sum += __uint_as_float(pairs[i] << 16) + __uint_as_float(pairs[i] & 0xffff0000u);
    }
    sum = quad_sum(sum);
  }
};

// 16 tokens of one KV head.
template <typename Format>
struct Chunk {
  const unsigned char* keys;
  int64_t side_bytes;  // from a key to its value: one address less to keep in registers
  const CodeScale *key_scales, *value_scales;
  int position;    // of the first token
  int first, end;  // of the visible positions

  __device__ Chunk(const CoreDecodeAttention& args, const Task& task, const Table& table, int number)
      : position(number * kChunk), first(task.range.first), end(task.range.end) {
    const KvPlaces<Format> places{args.blocks};
    side_bytes = places.rows() * places.row_bytes();
    const int block = table.block(position), slot = table.slot(position);
    keys = places.row(block, Side::kKeys, task.kv_head, slot);
    key_scales = places.scale(block, Side::kKeys, task.kv_head, slot);
    value_scales = places.scale(block, Side::kValues, task.kv_head, slot);
  }

  // True if a token of the chunk is visible to the row. The data of others is undefined.
  __device__ bool sees(int token) const { return position + token >= first && position + token < end; }
};

// ---- S and P ----

// The token of the chunk that element i of sums n of S belongs to.
__device__ inline int token_of(int n, int i, int t) {
  return n * 8 + t * 2 + i;
}

template <typename Format, int D>
__device__ void multiply_keys(const Query<D>& query, const Chunk<Format>& chunk, int g, int t, float (&s)[2][4]) {
  const int64_t row_bytes = D * Format::kBits / 8;
#pragma unroll
  for (int n = 0; n < 2; n++) {
    uint32_t keys[D / 8];
    load_row<Format, D>(chunk.keys + (n * 8 + g) * row_bytes, t, keys);
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
      const uint32_t a[4] = {query.pairs[step * 2], 0u, query.pairs[step * 2 + 1], 0u};
      const uint32_t b[2] = {keys[step * 2], keys[step * 2 + 1]};
      mma<BFloat16>(s[n], a, b);
    }
  }
}

// Scales of a lane's four tokens, in formats with codes.
template <typename Format>
struct Scales {
  CodeScale key[2][2], value[2][2];

  __device__ Scales(const Chunk<Format>& chunk, int t) {
    if constexpr (kHasCodes<Format>) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        key[i / 2][i % 2] = chunk.key_scales[token_of(i / 2, i % 2, t)];
        value[i / 2][i % 2] = chunk.value_scales[token_of(i / 2, i % 2, t)];
      }
    }
  }
};

// Four tokens of a lane, for head g.
struct Scores {
  float score[2][2];
  ValueScale value[2][2];
};

template <typename Format>
__device__ Scores take_scores(const CoreDecodeAttention& args, const Chunk<Format>& chunk, const Scales<Format>& scales,
                              float query_sum, int t, const float (&s)[2][4]) {
  Scores scores;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float product = s[i / 2][i % 2];
    if constexpr (kHasCodes<Format>) {
      const CentredScale key = centred<Format>(scales.key[i / 2][i % 2]);
      product = key.step * product + key.middle * query_sum;
    }
    scores.score[i / 2][i % 2] = product * args.scale;
  }
  if (args.soft_cap > 0.0f) {
#pragma unroll
    for (int i = 0; i < 4; i++) scores.score[i / 2][i % 2] = capped(scores.score[i / 2][i % 2], args.soft_cap);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const bool seen = chunk.sees(token_of(i / 2, i % 2, t));
    scores.score[i / 2][i % 2] = seen ? scores.score[i / 2][i % 2] * kLog2E : -INFINITY;
    if constexpr (kHasCodes<Format>) {
      const ValueScale value = value_scale<Format>(scales.value[i / 2][i % 2]);
      scores.value[i / 2][i % 2] = seen ? value : ValueScale{};
    }
  }
  return scores;
}

// Update the maximum from the quad's scores; return the factor that rescales earlier sums.
template <typename Format>
__device__ float raise(const Scores& scores, Softmax<Format>& softmax) {
  float most = -INFINITY, highest = -INFINITY;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float score = scores.score[i / 2][i % 2];
    most = fmaxf(most, score);
    if constexpr (kHasCodes<Format>) highest = fmaxf(highest, score + scores.value[i / 2][i % 2].level);
  }
  return softmax.raise(quad_max(most), kHasCodes<Format> ? quad_max(highest) : 0.0f);
}

// P^T as the right operand.
template <typename Format>
__device__ void take_weights(const Scores& scores, Softmax<Format>& softmax, uint32_t (&p)[2]) {
#pragma unroll
  for (int n = 0; n < 2; n++) {
    const float first = softmax.add(scores.score[n][0], scores.value[n][0]);
    const float second = softmax.add(scores.score[n][1], scores.value[n][1]);
    p[n] = pair_of<ValueNumber<Format>>(first, second);
  }
}

// ---- O ----

// O^T of 16 entries a tile: c[0] and c[1] of one entry and heads 2 t and 2 t + 1, c[2] and c[3] of the next entry.
template <int D>
using Output = float[D / 16][4];

// Entries from Base on that are taken together: kRun neighbouring ones by each of the eight rows of a tile.
template <int D, int Base>
constexpr int kRun = D - Base >= 64   ? 8
                     : D - Base >= 32 ? 4
                                      : 2;

// Values of a lane's four tokens, from entry Base on, as stored. Zeros for tokens that are not visible: finite also as
// codes.
template <typename Format, int D, int Base = 0>
struct Values {
  static constexpr int kWidth = kRun<D, Base>;

  Raw<Format, kWidth> rows[4];
  Values<Format, D, Base + kWidth * 8> rest;

  __device__ Values(const Chunk<Format>& chunk, int g, int t) : rest(chunk, g, t) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int token = token_of(i / 2, i % 2, t);
      const unsigned char* row = chunk.keys + chunk.side_bytes + token * int64_t{D * Format::kBits / 8};
      rows[i] = chunk.sees(token) ? load_raw<Format, kWidth>(row, Base + g * kWidth) : Raw<Format, kWidth>{};
    }
  }
};

template <typename Format, int D>
struct Values<Format, D, D> {
  __device__ Values(const Chunk<Format>&, int, int) {}
};

template <typename Format, int D, int Base>
__device__ void add_values(const Values<Format, D, Base>& values, const uint32_t (&p)[2], int g, Output<D>& o) {
  using Number = ValueNumber<Format>;
  constexpr int kWidth = Values<Format, D, Base>::kWidth;
  Entries<kWidth> rows[4];
#pragma unroll
  for (int i = 0; i < 4; i++) rows[i] = widened<Format, kWidth, Number>(values.rows[i], Base + g * kWidth);
#pragma unroll
  for (int m = 0; m < kWidth / 2; m++) {
    const uint32_t a[4] = {
        __byte_perm(rows[0].at[m], rows[1].at[m], 0x5410u), __byte_perm(rows[0].at[m], rows[1].at[m], 0x7632u),
        __byte_perm(rows[2].at[m], rows[3].at[m], 0x5410u), __byte_perm(rows[2].at[m], rows[3].at[m], 0x7632u)};
    mma<Number>(o[Base / 16 + m], a, p);
  }
  if constexpr (Base + kWidth * 8 < D) add_values(values.rest, p, g, o);
}

// Store the warp's output as rows of heads, [8, D].
template <int D, int Base = 0>
__device__ void put_output(const Output<D>& o, int g, int t, float* rows) {
  constexpr int kWidth = kRun<D, Base>;
#pragma unroll
  for (int m = 0; m < kWidth / 2; m++) {
#pragma unroll
    for (int i = 0; i < 4; i++) rows[(2 * t + i % 2) * D + Base + g * kWidth + 2 * m + i / 2] = o[Base / 16 + m][i];
  }
  if constexpr (Base + kWidth * 8 < D) put_output<D, Base + kWidth * 8>(o, g, t, rows);
}

template <int D>
__device__ void rescale(float factor, int t, Output<D>& o) {
  const float factors[2] = {__shfl_sync(kAllLanes, factor, t * 8), __shfl_sync(kAllLanes, factor, t * 8 + 4)};
#pragma unroll
  for (int m = 0; m < D / 16; m++) {
#pragma unroll
    for (int i = 0; i < 4; i++) o[m][i] *= factors[i % 2];
  }
}

}  // namespace core::decode
