// Layout of a packed matrix: tiles of 64 outputs, each contiguous along the inputs.
//
//   FLOAT32, FLOAT16: [inputs][64]
//   BFLOAT16:         [inputs / 2][64][2], inputs zero-padded to a multiple of 32
//   INT8, INT4:       group after group: codes, 64 scales, 64 offsets if any;
//                     INT8 codes [group / 4][64][4]; INT4 codes [group / 8][64][4], byte j of eight inputs holding
//                     input j in its low half and input 4 + j in its high half
//
// Integer inputs are padded to a multiple of 64, or of the group if larger, with codes that stand for zero. Outputs of
// all formats are padded to a multiple of 64.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core_program.h"

namespace core {

constexpr int64_t kTileOutputs = 64;

// Return the size of each of `parts` parts of a count; the last ones may be smaller or empty.
[[gnu::always_inline]] inline int64_t part_of(int64_t count, int64_t parts) {
  return parts == 1 ? count : (count + parts - 1) / parts;
}

// A node's part of a count.
struct NodePart {
  int64_t first, count;

  [[gnu::always_inline]] NodePart(int64_t all, int64_t nodes, int64_t node)
      : first(node * part_of(all, nodes)), count(all - first) {
    if (count > part_of(all, nodes)) count = part_of(all, nodes);
    if (count < 0) count = 0;
  }
};

struct WeightLayout {
  int64_t tiles;        // of 64 outputs
  int64_t shard_tiles;  // of each shard but the last
  int64_t inputs;       // including padding
  int64_t group;        // inputs of one group; float formats: all inputs
  int64_t groups;
  int64_t code_bytes;   // of the codes (or numbers) of one group
  int64_t scale_bytes;  // of 64 scales
  int64_t group_bytes;  // codes, scales and offsets
  int64_t tile_bytes;

  WeightLayout() = default;
  explicit WeightLayout(const CoreWeight& weight);
};

[[gnu::always_inline]] inline bool is_integer(const CoreWeight& weight) {
  return weight.format == CORE_FORMAT_INT8 || weight.format == CORE_FORMAT_INT4;
}

// Return the address of a tile.
[[gnu::always_inline]] inline std::byte* tile_at(const CoreWeight& weight, const WeightLayout& layout, int64_t tile) {
  auto* data = static_cast<std::byte*>(const_cast<void*>(weight.data));
  const int64_t shard = tile < layout.shard_tiles ? 0 : tile / layout.shard_tiles;
  return data + shard * weight.stride + (tile - shard * layout.shard_tiles) * layout.tile_bytes;
}

// Write one dequantized row as float32 [inputs]; weight.data must be set.
void weight_row(const CoreWeight& weight, int64_t row, float* values);

// Check a description, but not its data.
CoreStatus check(const CoreWeight& weight);

}  // namespace core
