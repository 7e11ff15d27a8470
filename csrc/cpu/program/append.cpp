// Appending an op, and fusing it with the previous one.
#include <algorithm>

#include "cpu/program/program.h"

namespace core {
namespace {

bool same(const CoreValue& a, const CoreValue& b) {
  return a.offset == b.offset && a.rows == b.rows;
}

// True if two values overlap in the workspace, in the largest batch.
bool overlap(const CoreValue& a, const CoreValue& b, const CoreShape& shape) {
  const auto end = [&](const CoreValue& value) {
    return value.offset + int64_t{value.width} * (value.rows == CORE_ROWS_TOKENS ? shape.max_tokens : shape.max_logits);
  };
  return a.offset < end(b) && b.offset < end(a);
}

// Fuse a gate into the linear op that computes its two inputs, which are then not written. False if that is impossible.
bool take_gate(LinearOp* linear, const CoreGated& gated, const CoreShape& shape) {
  if (linear == nullptr || linear->count != 2 || gated.up.width == 0 || overlap(gated.out, linear->x, shape))
    return false;
  const CoreValue &first = linear->projections[0].out, &second = linear->projections[1].out;
  if (!same(first, gated.gate) || !same(second, gated.up)) return false;
  linear->gate = gated.activation;
  linear->gated = gated.out;
  return true;
}

// Return the output of an op that can prepare whole rows for the next op; null for other ops.
const CoreValue* rows_written(const Op& op) {
  if (const auto* norm = std::get_if<CoreNorm>(&op)) return &norm->out;
  if (const auto* norm = std::get_if<CoreLayerNorm>(&op)) return &norm->out;
  if (const auto* gated = std::get_if<CoreGated>(&op)) return &gated->out;
  if (const auto* gather = std::get_if<CoreGather>(&op)) return &gather->out;
  return nullptr;
}

}  // namespace
}  // namespace core

void CoreProgram::append(const core::Op& op, const core::Kernel& kernel) {
  if (const auto* gated = std::get_if<CoreGated>(&op); gated != nullptr && !ops.empty()) {
    if (core::take_gate(std::get_if<core::LinearOp>(&ops.back().op), *gated, shape)) return;
  }
  ops.push_back({op, &kernel});  // May fail, and nothing has changed then.
  if (const auto* linear = std::get_if<core::LinearOp>(&op); linear != nullptr && ops.size() > 1) {
    core::RecordedOp& before = ops[ops.size() - 2];
    const CoreValue* out = core::rows_written(before.op);
    before.feeds = out != nullptr && out->offset == linear->x.offset && out->rows == linear->x.rows;
  }
  const void* data = ops.back().data();
  if (kernel.shared_bytes != nullptr)
    shared_bytes = std::max(shared_bytes, kernel.shared_bytes(data, shape, cpu.pool.size()));
  if (kernel.scratch_bytes != nullptr)
    scratch_bytes = std::max(scratch_bytes, kernel.scratch_bytes(data, shape, cpu.pool.size()));
  if (kernel.part_bytes != nullptr) part_bytes = std::max(part_bytes, kernel.part_bytes(data, shape));
}
