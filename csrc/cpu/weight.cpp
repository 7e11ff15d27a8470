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

void check_integer(Check& check, const CoreWeight& weight) {
  const int32_t group = weight.group;
  const bool groups = group == 0 || group == 16 || group == 32 || group == 64 || group == 128;
  const bool scales = weight.scales == CORE_FLOAT32 || weight.scales == CORE_FLOAT16;
  check.that(groups, CORE_BAD_GROUP, weight.group).that(scales, CORE_UNKNOWN_DTYPE, weight.scales);
  check.that(weight.zero >= 0 && weight.zero <= 255, CORE_BAD_CODE, weight.zero);
  if (weight.codebook == 0) return;
  check.that(weight.format == CORE_FORMAT_INT4, CORE_BAD_CODE, weight.codebook);
  for (float value : weight.values) check.that(std::isfinite(value), CORE_BAD_CODE, weight.values);
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
  const bool known = weight.format >= CORE_FORMAT_FLOAT32 && weight.format <= CORE_FORMAT_INT4;
  const bool apart = weight.shards <= 1 || (weight.stride > 0 && weight.stride % 64 == 0);
  Check check(&weight);
  check.extent(weight.outputs).extent(weight.inputs).that(known, CORE_UNKNOWN_DTYPE, weight.format);
  check.that(weight.shards >= 0 && weight.shards <= kMostNodes, CORE_BAD_COUNT, weight.shards);
  check.that(apart, CORE_BAD_EXTENT, weight.stride);
  if (is_integer(weight)) check_integer(check, weight);
  return check.result();
}

}  // namespace core
