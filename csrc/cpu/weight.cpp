#include "cpu/weight.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "cpu/pool.h"

namespace core {
namespace {

constexpr int64_t kInputPadding = 64;

int64_t up_to_multiple(int64_t value, int64_t of) {
  return (value + of - 1) / of * of;
}

int64_t bits(int32_t format) {
  switch (format) {
    case CORE_FORMAT_FLOAT32:
      return 32;
    case CORE_FORMAT_BFLOAT16:
    case CORE_FORMAT_FLOAT16:
      return 16;
    case CORE_FORMAT_INT8:
      return 8;
    default:
      return 4;
  }
}

int64_t filled_inputs(const CoreWeight& weight) {
  if (weight.format == CORE_FORMAT_BFLOAT16) return up_to_multiple(weight.inputs, 32);
  if (!is_integer(weight)) return weight.inputs;
  return up_to_multiple(weight.inputs, std::max<int64_t>(weight.group, kInputPadding));
}

CoreStatus check_integer(const CoreWeight& weight) {
  const int32_t group = weight.group;
  if (group != 0 && group != 16 && group != 32 && group != 64 && group != 128) {
    return bad_field(CORE_BAD_GROUP, offsetof(CoreWeight, group));
  }
  if (weight.scales != CORE_FLOAT32 && weight.scales != CORE_FLOAT16) {
    return bad_field(CORE_UNKNOWN_DTYPE, offsetof(CoreWeight, scales));
  }
  if (weight.zero < 0 || weight.zero > 255) return bad_field(CORE_BAD_CODE, offsetof(CoreWeight, zero));
  if (weight.codebook == 0) return CORE_OK;
  if (weight.format != CORE_FORMAT_INT4) return bad_field(CORE_BAD_CODE, offsetof(CoreWeight, codebook));
  for (float value : weight.values) {
    if (!std::isfinite(value)) return bad_field(CORE_BAD_CODE, offsetof(CoreWeight, values));
  }
  return CORE_OK;
}

}  // namespace

WeightLayout::WeightLayout(const CoreWeight& weight)
    : tiles((weight.outputs + kTileOutputs - 1) / kTileOutputs),
      shard_tiles(part_of(tiles, std::max(weight.shards, 1))),
      inputs(filled_inputs(weight)),
      group(is_integer(weight) && weight.group != 0 ? weight.group : inputs),
      groups(inputs / group),
      code_bytes(group * kTileOutputs * bits(weight.format) / 8),
      scale_bytes(is_integer(weight) ? kTileOutputs * static_cast<int64_t>(dtype_bytes(weight.scales)) : 0),
      group_bytes(code_bytes + scale_bytes * (weight.offsets != 0 ? 2 : 1)),
      tile_bytes(groups * group_bytes) {}

CoreStatus check(const CoreWeight& weight) {
  if (weight.outputs < 1 || weight.outputs > kMaxExtent) {
    return bad_field(CORE_BAD_EXTENT, offsetof(CoreWeight, outputs));
  }
  if (weight.inputs < 1 || weight.inputs > kMaxExtent) return bad_field(CORE_BAD_EXTENT, offsetof(CoreWeight, inputs));
  if (weight.format < CORE_FORMAT_FLOAT32 || weight.format > CORE_FORMAT_INT4) {
    return bad_field(CORE_UNKNOWN_DTYPE, offsetof(CoreWeight, format));
  }
  if (weight.shards < 0 || weight.shards > kMostNodes) return bad_field(CORE_BAD_COUNT, offsetof(CoreWeight, shards));
  if (weight.shards > 1 && (weight.stride <= 0 || weight.stride % 64 != 0)) {
    return bad_field(CORE_BAD_EXTENT, offsetof(CoreWeight, stride));
  }
  return is_integer(weight) ? check_integer(weight) : CORE_OK;
}

}  // namespace core
