// Tiles of prefill attention: the rows and keys of a thread block, and their loads into shared memory. A row is one
// query head of one token: row r of a sequence is token r / group, head r % group of the KV head.
#pragma once

#include <cstdint>

#include "cuda/attention/attention.h"

namespace core::prefill {

constexpr int kThreads = 128;
constexpr int kTileRows = 64;  // 16 for each warp

// Keys of a tile.
template <int D>
constexpr int kKeys = D <= 128 ? 64 : 32;

// Elements from a row of a tile to the next: an odd number of 16-byte units, so that rows lie in different banks.
template <int D>
constexpr int kRowStride = D + 8;

template <int D>
using Sums = float[kKeys<D> / 8][4];
template <int D>
using Weights = uint32_t[kKeys<D> / 16][4];
template <int D>
using Output = float[D / 8][4];

// Which tile of which sequence a thread block takes. The tiles of all sequences of the list are numbered; those of its
// n-th begin at n + (rows before them) / kTileRows, which leaves room for a last tile that is not full.
struct Place {
  int sequence, tile;

  // The last tiles of a sequence, which have the most visible keys, start first.
  __device__ explicit Place(const CorePrefillAttention& args) {
    const int first = args.list[0], number = static_cast<int>(gridDim.x - 1 - blockIdx.x);
    int low = 0;
    for (int high = args.list[1]; high - low > 1;) {
      const int middle = (low + high) / 2;
      if (begin(args, first, middle) <= number) {
        low = middle;
      } else {
        high = middle;
      }
    }
    sequence = first + low;
    tile = number - begin(args, first, low);
  }

 private:
  static __device__ int begin(const CorePrefillAttention& args, int first, int n) {
    const int tokens = args.firsts[first + n] - args.firsts[first];
    return n + tokens * (args.heads / args.blocks.kv_heads) / kTileRows;
  }
};

// The task of a thread block.
struct Task {
  int kv_head;
  Divisor group;  // query heads of a KV head
  Table table;
  int rows;       // of the sequence
  int first_row;  // of the tile
  int first_token, first_head;
  int past;  // tokens of the sequence before its first row
  int window;
  int end_key;  // end of the positions visible to any row

  __device__ Task(const CorePrefillAttention& args, const Place& place)
      : group(args.heads / args.blocks.kv_heads), table(args, args.table_rows[place.sequence]) {
    const int sequence = place.sequence, length = args.firsts[sequence + 1] - args.firsts[sequence];
    const int heads = args.heads / args.blocks.kv_heads;
    kv_head = static_cast<int>(blockIdx.y);
    first_head = kv_head * heads;
    rows = length * heads;
    first_row = place.tile * kTileRows;
    first_token = args.firsts[sequence];
    past = args.stored[sequence] - length;
    window = args.window;
    end_key = past + min(length, group.quotient(first_row + kTileRows - 1) + 1);
  }

  __device__ int position(int row) const { return past + group.quotient(row); }
  __device__ int lowest(int row) const { return window > 0 ? max(0, position(row) - window + 1) : 0; }
  __device__ int token(int row) const { return first_token + group.quotient(row); }
  __device__ int head(int row) const { return first_head + group.remainder(row); }
  // True if all these keys are visible to every row of the tile.
  __device__ bool all_see(int first, int last) const {
    return last <= position(first_row) && first >= lowest(min(first_row + kTileRows, rows) - 1);
  }
  __device__ int first_key() const { return lowest(first_row) / kChunk * kChunk; }
};

// The two rows of a lane.
struct Rows {
  int first, t;
  int position[2];
  int lowest[2];
  float query_sum[2] = {};  // of all entries of the query

  __device__ explicit Rows(const Task& task) {
    const int lane = threadIdx.x % kWarpSize;
    first = task.first_row + static_cast<int>(threadIdx.x) / kWarpSize * 16 + lane / 4;
    t = lane % 4;
    for (int half = 0; half < 2; half++) {
      position[half] = task.position(number(half));
      lowest[half] = task.lowest(number(half));
    }
  }

  __device__ int number(int half) const { return first + half * 8; }

  __device__ bool sees(const Task& task, int half, int key) const {
    return key >= lowest[half] && key <= position[half] && key < task.end_key;
  }

  template <int D>
  __device__ void add_queries(const BFloat16* queries) {
    for (int half = 0; half < 2; half++) {
      const int row = static_cast<int>(threadIdx.x) / kWarpSize * 16 + static_cast<int>(threadIdx.x) % kWarpSize / 4;
      const BFloat16* query = queries + (row + half * 8) * kRowStride<D>;
      float sum = 0.0f;
      for (int d = t; d < D; d += 4) sum += to_float(query[d]);
      query_sum[half] = quad_sum(sum);
    }
  }
};

// Scales of the keys and values of a tile.
template <int D>
struct TileScales {
  CentredScale keys[kKeys<D>];
  ValueScale values[kKeys<D>];
};

// Shared memory. Scales of values are loaded with the keys, one tile before the values: hence two sets of scales.
template <int D>
struct Tiles {
  static constexpr int kElements = (kTileRows + 2 * kKeys<D>)*kRowStride<D>;
  static constexpr int kBytes =
      kElements * static_cast<int>(sizeof(BFloat16)) + 2 * static_cast<int>(sizeof(TileScales<D>));

  BFloat16 *queries, *keys, *values;

  __device__ explicit Tiles(BFloat16* scratch)
      : queries(scratch),
        keys(scratch + kTileRows * kRowStride<D>),
        values(scratch + (kTileRows + kKeys<D>)*kRowStride<D>) {}

  __device__ TileScales<D>& scales(int first_key) const {
    return reinterpret_cast<TileScales<D>*>(queries + kElements)[first_key / kKeys<D> % 2];
  }
};

template <int D>
__device__ void stage_queries(const CorePrefillAttention& args, const Task& task, BFloat16* queries) {
  constexpr int kUnits = D / 8;  // of 16 bytes, in a row
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kUnits; i += kThreads) {
    const int row = task.first_row + i / kUnits, d = i % kUnits * 8;
    const bool there = row < task.rows;
    const int known = there ? row : task.first_row;
    const auto* source = static_cast<const BFloat16*>(args.q) + task.token(known) * args.q_stride;
    copy_async(queries + i / kUnits * kRowStride<D> + d, source + task.head(known) * D + d, there);
  }
}

// Store one side of a tile: entries, or codes less the centre. Tokens that are not visible to any row become zeros:
// their data is undefined, and zero times that may be NaN.
template <typename Format, int D, typename Number>
__device__ void stage(const CorePrefillAttention& args, const Task& task, Side side, int first_key, BFloat16* tile) {
  constexpr int kUnits = D / 8;
  const KvPlaces<Format> places{args.blocks};
  for (int i = static_cast<int>(threadIdx.x); i < kKeys<D> * kUnits; i += kThreads) {
    const int key = first_key + i / kUnits, d = i % kUnits * 8;
    const bool there = key >= task.lowest(task.first_row) && key < task.end_key;
    const int known = there ? key : task.end_key - 1;
    const int block = task.table.block(known);
    const unsigned char* row = places.row(block, side, task.kv_head, task.table.slot(known));
    BFloat16* to = tile + i / kUnits * kRowStride<D> + d;
    if constexpr (kHasCodes<Format>) {
      *reinterpret_cast<Entries<8>*>(to) = there ? load_entries<Format, 8, Number>(row, d) : Entries<8>{};
    } else {
      copy_async(to, row + d * 2, there);
    }
  }
}

template <typename Format, int D>
__device__ void stage_scales(const CorePrefillAttention& args, const Task& task, int first_key, TileScales<D>& scales) {
  const KvPlaces<Format> places{args.blocks};
  for (int i = static_cast<int>(threadIdx.x); i < kKeys<D>; i += kThreads) {
    const int key = first_key + i;
    const bool there = key >= task.lowest(task.first_row) && key < task.end_key;
    scales.keys[i] = {};
    scales.values[i] = {};
    if (!there) continue;
    const int block = task.table.block(key);
    const int slot = task.table.slot(key);
    scales.keys[i] = centred<Format>(*places.scale(block, Side::kKeys, task.kv_head, slot));
    scales.values[i] = value_scale<Format>(*places.scale(block, Side::kValues, task.kv_head, slot));
  }
}

// Start to load a tile of keys, if there is one, and close the group of copies.
template <typename Format, int D>
__device__ void stage_keys(const CorePrefillAttention& args, const Task& task, const Tiles<D>& tiles, int first_key) {
  if (first_key < task.end_key) {
    stage<Format, D, BFloat16>(args, task, Side::kKeys, first_key, tiles.keys);
    if constexpr (kHasCodes<Format>) stage_scales<Format, D>(args, task, first_key, tiles.scales(first_key));
  }
  copies_commit();
}

template <typename Format, int D>
__device__ void stage_values(const CorePrefillAttention& args, const Task& task, const Tiles<D>& tiles, int first_key) {
  if (first_key < task.end_key)
    stage<Format, D, ValueNumber<Format>>(args, task, Side::kValues, first_key, tiles.values);
  copies_commit();
}

}  // namespace core::prefill
