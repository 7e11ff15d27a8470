// Packing of matrix rows into the tiles of weight.h, and unpacking.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "cpu/cpu.h"
#include "cpu/number.h"
#include "cpu/weight.h"

namespace core {
namespace {

constexpr int32_t kLayoutVersion = 1;

// A tile of the matrix, and its rows.
struct Tile {
  const CorePack& pack;
  const CoreWeight& weight;
  const WeightLayout& layout;
  std::byte* data;
  int64_t first_row;  // in rows_data
  int64_t rows;       // 1 ... 64

  int64_t source_groups() const { return (weight.inputs + layout.group - 1) / layout.group; }
};

template <typename T>
void pack_numbers(const Tile& tile, int64_t together) {
  T* out = reinterpret_cast<T*>(tile.data);
  const int64_t inputs = tile.weight.inputs;
  for (int64_t row = 0; row < tile.rows; row++) {
    const T* in = static_cast<const T*>(tile.pack.rows_data) + (tile.first_row + row) * inputs;
    for (int64_t k = 0; k < inputs; k++) {
      out[(k / together * kTileOutputs + row) * together + k % together] = in[k];
    }
  }
}

// Return the offset of the code of an input and an output in the codes of its group.
struct CodePlace {
  int64_t byte;
  int shift;
};

CodePlace code_place(int32_t format, int64_t k, int64_t column) {
  if (format == CORE_FORMAT_INT8) return {(k / 4 * kTileOutputs + column) * 4 + k % 4, 0};
  return {(k / 8 * kTileOutputs + column) * 4 + k % 4, static_cast<int>(k / 4 % 2 * 4)};
}

void put_scale(const CoreWeight& weight, std::byte* scales, int64_t column, float value) {
  if (weight.scales == CORE_FLOAT32) {
    reinterpret_cast<float*>(scales)[column] = value;
  } else {
    reinterpret_cast<Float16*>(scales)[column] = from_float<Float16>(value);
  }
}

float get_scale(const CoreWeight& weight, const std::byte* scales, int64_t column) {
  if (weight.scales == CORE_FLOAT32) return reinterpret_cast<const float*>(scales)[column];
  return to_float(reinterpret_cast<const Float16*>(scales)[column]);
}

void pack_row_codes(const Tile& tile, int64_t row) {
  const int64_t inputs = tile.weight.inputs;
  const auto* in = static_cast<const uint8_t*>(tile.pack.rows_data) + (tile.first_row + row) * inputs;
  for (int64_t k = 0; k < tile.layout.inputs; k++) {
    const int64_t group = k / tile.layout.group;
    const auto [byte, shift] = code_place(tile.weight.format, k - group * tile.layout.group, row);
    const int code = k < inputs ? in[k] : tile.weight.zero;
    tile.data[group * tile.layout.group_bytes + byte] |= static_cast<std::byte>(code << shift);
  }
}

void pack_row_scales(const Tile& tile, int64_t row) {
  const int64_t groups = tile.source_groups(), first = (tile.first_row + row) * groups;
  for (int64_t group = 0; group < groups; group++) {
    std::byte* scales = tile.data + group * tile.layout.group_bytes + tile.layout.code_bytes;
    put_scale(tile.weight, scales, row, tile.pack.row_scales[first + group]);
    if (tile.weight.offsets != 0) {
      put_scale(tile.weight, scales + tile.layout.scale_bytes, row, tile.pack.row_offsets[first + group]);
    }
  }
}

void pack_tile(const Tile& tile) {
  std::memset(tile.data, 0, static_cast<size_t>(tile.layout.tile_bytes));
  switch (tile.weight.format) {
    case CORE_FORMAT_FLOAT32:
      return pack_numbers<float>(tile, 1);
    case CORE_FORMAT_FLOAT16:
      return pack_numbers<uint16_t>(tile, 1);
    case CORE_FORMAT_BFLOAT16:
      return pack_numbers<uint16_t>(tile, 2);
  }
  for (int64_t row = 0; row < tile.rows; row++) {
    pack_row_codes(tile, row);
    pack_row_scales(tile, row);
  }
}

CoreStatus check_pack(const CorePack& pack) {
  Check check(&pack);
  check.pointer(pack.weight);
  if (!check.ok()) return check.result();
  const CoreWeight& weight = *pack.weight;
  const CoreStatus described = core::check(weight);
  const int64_t last = pack.first_row + pack.rows;
  const bool first_right = pack.first_row >= 0 && pack.first_row % kTileOutputs == 0;
  const bool rows_right =
      pack.rows >= 1 && last <= weight.outputs && (last % kTileOutputs == 0 || last == weight.outputs);
  const bool offsets_right = (pack.row_offsets != nullptr) == (weight.offsets != 0);
  check.that(described == CORE_OK, code_of(described), pack.weight);
  check.that(weight.data != nullptr, CORE_NULL_POINTER, pack.weight).pointer(pack.rows_data);
  if (is_integer(weight)) {
    check.pointer(pack.row_scales).that(offsets_right, CORE_NULL_POINTER, pack.row_offsets);
  }
  check.that(first_right, CORE_BAD_COUNT, pack.first_row).that(rows_right, CORE_BAD_EXTENT, pack.rows);
  return check.result();
}

float number_at(const CoreWeight& weight, const std::byte* tile, int64_t column, int64_t k) {
  switch (weight.format) {
    case CORE_FORMAT_FLOAT32:
      return reinterpret_cast<const float*>(tile)[k * kTileOutputs + column];
    case CORE_FORMAT_FLOAT16:
      return to_float(reinterpret_cast<const Float16*>(tile)[k * kTileOutputs + column]);
    default:
      return to_float(reinterpret_cast<const BFloat16*>(tile)[(k / 2 * kTileOutputs + column) * 2 + k % 2]);
  }
}

float integer_at(const CoreWeight& weight, const WeightLayout& layout, const std::byte* tile, int64_t column,
                 int64_t k) {
  const std::byte* group = tile + k / layout.group * layout.group_bytes;
  const auto [byte, shift] = code_place(weight.format, k % layout.group, column);
  const int mask = weight.format == CORE_FORMAT_INT8 ? 0xff : 0x0f;
  const int code = static_cast<int>(group[byte]) >> shift & mask;
  const float value = weight.codebook != 0 ? weight.values[code] : static_cast<float>(code);
  const std::byte* scales = group + layout.code_bytes;
  const float offset = weight.offsets != 0 ? get_scale(weight, scales + layout.scale_bytes, column) : 0.0f;
  return get_scale(weight, scales, column) * (value - static_cast<float>(weight.zero)) + offset;
}

}  // namespace

void weight_row(const CoreWeight& weight, int64_t row, float* values) {
  const WeightLayout layout(weight);
  const auto* tile = tile_at(weight, layout, row / kTileOutputs);
  const int64_t column = row % kTileOutputs;
  for (int64_t k = 0; k < weight.inputs; k++) {
    values[k] = is_integer(weight) ? integer_at(weight, layout, tile, column, k) : number_at(weight, tile, column, k);
  }
}

namespace {

// Packs tiles, in one phase.
struct Packing {
  const Pool& pool;
  const CorePack& pack;
  const WeightLayout layout;
  bool begun = false;

  NodePart tiles(int32_t node) const { return NodePart(part_of(pack.rows, kTileOutputs), pool.nodes(), node); }

  bool next(int64_t* jobs) {
    for (int32_t node = 0; node < pool.nodes(); node++) jobs[node] = tiles(node).count;
    return !std::exchange(begun, true);
  }

  void run(int64_t tile) const {
    const int64_t first = tile * kTileOutputs, place = pack.first_row / kTileOutputs + tile;
    std::byte* data = tile_at(*pack.weight, layout, place);
    pack_tile({pack, *pack.weight, layout, data, first, std::min(kTileOutputs, pack.rows - first)});
  }

  void run(int64_t first, int64_t last, int32_t thread) const {
    const int64_t begin = tiles(pool.node_of(thread)).first;
    for (int64_t tile = begin + first; tile < begin + last; tile++) run(tile);
  }
};

}  // namespace

CoreStatus pack_rows(Pool& pool, const CorePack& pack) {
  if (const CoreStatus status = check_pack(pack); status != CORE_OK) return status;
  Packing packing{pool, pack, WeightLayout(*pack.weight)};
  // Returns when all jobs are done: no thread reads the caller's rows after that.
  pool.run({[](void* context, int64_t* jobs) { return static_cast<Packing*>(context)->next(jobs); },
            [](void* context, int64_t first, int64_t last, int32_t thread) {
              static_cast<const Packing*>(context)->run(first, last, thread);
            },
            &packing});
  return CORE_OK;
}

}  // namespace core

int32_t core_weight_version(void) {
  return core::kLayoutVersion;
}

int64_t core_weight_bytes(const CoreWeight* weight) {
  if (weight == nullptr || core::check(*weight) != CORE_OK) return 0;
  const core::WeightLayout layout(*weight);
  return layout.shard_tiles * layout.tile_bytes;
}

CoreStatus core_weight_row(const CoreWeight* weight, int64_t row, float* values) {
  if (weight == nullptr || weight->data == nullptr || values == nullptr) return core::status(CORE_NULL_POINTER, 0);
  if (const CoreStatus status = core::check(*weight); status != CORE_OK) return status;
  if (row < 0 || row >= weight->outputs) return core::status(CORE_BAD_COUNT, 0);
  core::weight_row(*weight, row, values);
  return CORE_OK;
}

CoreStatus core_weight_pack(CoreCpu* cpu, const CorePack* pack) {
  if (cpu == nullptr || pack == nullptr) return core::status(CORE_NULL_POINTER, 0);
  return core::pack_rows(cpu->pool, *pack);
}
