// Recording: every op is checked when it is appended, so that a replay has nothing to check but the batch.
#include "cpu/program.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "common/check.h"
#include "cpu/weight.h"

namespace core {
namespace {

CoreStatus check_shape(const CoreShape& shape) {
  const struct {
    int64_t value;
    size_t offset;
  } extents[] = {
      {shape.workspace, offsetof(CoreShape, workspace)},
      {shape.max_tokens, offsetof(CoreShape, max_tokens)},
      {shape.max_sequences, offsetof(CoreShape, max_sequences)},
      {shape.max_logits, offsetof(CoreShape, max_logits)},
      {shape.max_positions, offsetof(CoreShape, max_positions)},
      {shape.layers, offsetof(CoreShape, layers)},
      {shape.heads, offsetof(CoreShape, heads)},
      {shape.kv_heads, offsetof(CoreShape, kv_heads)},
      {shape.head_dim, offsetof(CoreShape, head_dim)},
      {shape.block_size, offsetof(CoreShape, block_size)},
      {shape.vocab, offsetof(CoreShape, vocab)},
  };
  for (const auto& extent : extents) {
    if (extent.value < 1 || extent.value > (int64_t{1} << 48)) return bad_field(CORE_BAD_EXTENT, extent.offset);
  }
  if (shape.heads % shape.kv_heads != 0) return bad_field(CORE_BAD_SHAPE, offsetof(CoreShape, heads));
  if (shape.head_dim % 16 != 0) return bad_field(CORE_BAD_SHAPE, offsetof(CoreShape, head_dim));
  if (shape.block_size % kPageTokens != 0) return bad_field(CORE_BAD_SHAPE, offsetof(CoreShape, block_size));
  if (shape.kv < CORE_KV_FLOAT32 || shape.kv > CORE_KV_UINT4) {
    return bad_field(CORE_UNKNOWN_DTYPE, offsetof(CoreShape, kv));
  }
  return CORE_OK;
}

// Checks one op of a program; the first thing that is wrong stays.
class Check {
 public:
  explicit Check(const CoreProgram* program) : program_(program) {
    if (program == nullptr) status_ = status(CORE_NULL_POINTER, 0);
  }

  CoreStatus result() const { return status_; }
  bool ok() const { return status_ == CORE_OK; }

  Check& that(bool holds, CoreCode code, size_t field) {
    if (ok() && !holds) status_ = bad_field(code, field);
    return *this;
  }

  // A value that lies in the workspace and has this width; width 0: any.
  Check& value(const CoreValue& value, int64_t width, size_t field) {
    if (!ok()) return *this;
    const CoreShape& shape = program_->shape;
    that(value.rows == CORE_ROWS_TOKENS || value.rows == CORE_ROWS_LOGITS, CORE_BAD_VALUE, field);
    that(value.width > 0 && (width == 0 || value.width == width), CORE_BAD_VALUE, field);
    const int64_t rows = value.rows == CORE_ROWS_TOKENS ? shape.max_tokens : shape.max_logits;
    that(value.offset >= 0 && value.offset % 16 == 0, CORE_BAD_VALUE, field);
    return that(value.offset + rows * value.width <= shape.workspace, CORE_BAD_VALUE, field);
  }

  // A value with the rows and the width of another.
  Check& alike(const CoreValue& value, const CoreValue& other, size_t field) {
    this->value(value, other.width, field);
    return that(value.rows == other.rows, CORE_BAD_VALUE, field);
  }

  Check& pointer(const void* pointer, size_t field) { return that(pointer != nullptr, CORE_NULL_POINTER, field); }

  Check& weight(const CoreWeight* weight, size_t field) {
    pointer(weight, field);
    if (!ok()) return *this;
    that(check(*weight) == CORE_OK, code_of(check(*weight)), field);
    that(weight->data != nullptr, CORE_NULL_POINTER, field);
    that(weight->shards <= 1 || weight->shards == program_->cpu.pool.nodes(), CORE_BAD_SHAPE, field);
    return that(reinterpret_cast<uintptr_t>(weight->data) % 64 == 0, CORE_MISALIGNED, field);
  }

  Check& layer(int32_t layer, size_t field) {
    return that(ok() && layer >= 0 && layer < program_->shape.layers, CORE_BAD_SHAPE, field);
  }

 private:
  const CoreProgram* program_;
  CoreStatus status_ = CORE_OK;
};

// Appends what has been checked.
CoreStatus append(CoreProgram* program, const Check& check, const Op& op, const Kernel Kernels::* kernel) {
  if (check.ok()) program->append(op, program->cpu.kernels.*kernel);
  return check.result();
}

void check_projection(Check& check, const CoreLinear& op, int32_t number) {
  const CoreProjection& projection = op.projections[number];
  const size_t field = offsetof(CoreLinear, projections) + static_cast<size_t>(number) * sizeof(CoreProjection);
  check.weight(projection.weight, field);
  if (!check.ok()) return;
  check.that(projection.weight->inputs == op.x.width, CORE_BAD_VALUE, field);
  check.value(projection.out, projection.weight->outputs, field + offsetof(CoreProjection, out));
  check.that(projection.out.rows == op.x.rows, CORE_BAD_VALUE, field + offsetof(CoreProjection, out));
}

}  // namespace
}  // namespace core

using core::Check;

CoreProgram::CoreProgram(CoreCpu& cpu, const CoreShape& shape) : cpu(cpu), shape(shape) {
  kv.page_bytes = core::page_bytes(static_cast<CoreKv>(shape.kv), shape.head_dim);
  kv.kv_heads = shape.kv_heads;
  kv.pages = shape.block_size / core::kPageTokens;
}

CoreStatus core_program_create(CoreCpu* cpu, const CoreShape* shape, CoreProgram** program) {
  if (cpu == nullptr || shape == nullptr || program == nullptr) return core::status(CORE_NULL_POINTER, 0);
  if (const CoreStatus status = core::check_shape(*shape); status != CORE_OK) return status;
  *program = new CoreProgram(*cpu, *shape);
  return CORE_OK;
}

void core_program_destroy(CoreProgram* program) {
  delete program;
}

CoreStatus core_program_embed(CoreProgram* program, const CoreEmbed* op) {
  Check check(program);
  if (!check.pointer(op, 0).ok()) return check.result();
  check.weight(op->table, offsetof(CoreEmbed, table));
  if (!check.ok()) return check.result();
  check.value(op->out, op->table->inputs, offsetof(CoreEmbed, out));
  check.that(op->out.rows == CORE_ROWS_TOKENS, CORE_BAD_VALUE, offsetof(CoreEmbed, out));
  check.that(op->table->outputs == program->shape.vocab, CORE_BAD_SHAPE, offsetof(CoreEmbed, table));
  return core::append(program, check, core::EmbedOp{*op->table, op->out}, &core::Kernels::embed);
}

CoreStatus core_program_norm(CoreProgram* program, const CoreNorm* op) {
  Check check(program);
  if (!check.pointer(op, 0).ok()) return check.result();
  check.value(op->x, 0, offsetof(CoreNorm, x)).alike(op->out, op->x, offsetof(CoreNorm, out));
  if (op->residual.width != 0) {
    check.alike(op->residual, op->x, offsetof(CoreNorm, residual));
    check.alike(op->residual_out, op->x, offsetof(CoreNorm, residual_out));
  }
  check.pointer(op->weight, offsetof(CoreNorm, weight));
  check.that(std::isfinite(op->eps) && op->eps >= 0, CORE_BAD_NUMBER, offsetof(CoreNorm, eps));
  return core::append(program, check, *op, &core::Kernels::norm);
}

CoreStatus core_program_linear(CoreProgram* program, const CoreLinear* op) {
  Check check(program);
  if (!check.pointer(op, 0).ok()) return check.result();
  check.value(op->x, 0, offsetof(CoreLinear, x));
  check.that(op->count >= 1 && op->count <= 3, CORE_BAD_EXTENT, offsetof(CoreLinear, count));
  const bool known = op->activations == CORE_ACTIVATIONS_FULL || op->activations == CORE_ACTIVATIONS_INT8;
  check.that(known, CORE_UNKNOWN_DTYPE, offsetof(CoreLinear, activations));
  core::LinearOp linear{op->x, {}, op->count, op->activations, 0, {}};
  for (int32_t i = 0; check.ok() && i < op->count; i++) {
    core::check_projection(check, *op, i);
    if (check.ok())
      linear.projections[i] = {*op->projections[i].weight, op->projections[i].bias, op->projections[i].out};
  }
  return core::append(program, check, linear, &core::Kernels::linear);
}

CoreStatus core_program_rope_append(CoreProgram* program, const CoreRopeAppend* op) {
  Check check(program);
  if (!check.pointer(op, 0).ok()) return check.result();
  const CoreShape& shape = program->shape;
  const int64_t queries = int64_t{shape.heads} * shape.head_dim, keys = int64_t{shape.kv_heads} * shape.head_dim;
  check.value(op->q, queries, offsetof(CoreRopeAppend, q)).alike(op->q_out, op->q, offsetof(CoreRopeAppend, q_out));
  check.value(op->k, keys, offsetof(CoreRopeAppend, k)).alike(op->v, op->k, offsetof(CoreRopeAppend, v));
  check.that(op->q.rows == CORE_ROWS_TOKENS, CORE_BAD_VALUE, offsetof(CoreRopeAppend, q));
  check.that(op->k.rows == CORE_ROWS_TOKENS, CORE_BAD_VALUE, offsetof(CoreRopeAppend, k));
  const bool even = op->rotary_dim >= 0 && op->rotary_dim % 2 == 0 && op->rotary_dim <= shape.head_dim;
  check.that(even, CORE_BAD_SHAPE, offsetof(CoreRopeAppend, rotary_dim));
  if (op->rotary_dim != 0) {
    check.pointer(op->cos, offsetof(CoreRopeAppend, cos)).pointer(op->sin, offsetof(CoreRopeAppend, sin));
  }
  check.layer(op->layer, offsetof(CoreRopeAppend, layer));
  return core::append(program, check, *op, &core::Kernels::rope_append);
}

CoreStatus core_program_attention(CoreProgram* program, const CoreAttention* op) {
  Check check(program);
  if (!check.pointer(op, 0).ok()) return check.result();
  const int64_t queries = int64_t{program->shape.heads} * program->shape.head_dim;
  check.value(op->q, queries, offsetof(CoreAttention, q)).alike(op->out, op->q, offsetof(CoreAttention, out));
  check.that(op->q.rows == CORE_ROWS_TOKENS, CORE_BAD_VALUE, offsetof(CoreAttention, q));
  check.layer(op->layer, offsetof(CoreAttention, layer));
  check.that(op->window >= 0, CORE_BAD_COUNT, offsetof(CoreAttention, window));
  check.that(std::isfinite(op->scale), CORE_BAD_NUMBER, offsetof(CoreAttention, scale));
  check.that(std::isfinite(op->soft_cap) && op->soft_cap >= 0, CORE_BAD_NUMBER, offsetof(CoreAttention, soft_cap));
  return core::append(program, check, *op, &core::Kernels::attention);
}

CoreStatus core_program_gated(CoreProgram* program, const CoreGated* op) {
  Check check(program);
  if (!check.pointer(op, 0).ok()) return check.result();
  check.value(op->gate, 0, offsetof(CoreGated, gate)).alike(op->up, op->gate, offsetof(CoreGated, up));
  check.alike(op->out, op->gate, offsetof(CoreGated, out));
  const bool known = op->activation >= CORE_GATE_SILU && op->activation <= CORE_GATE_GELU_TANH;
  check.that(known, CORE_UNKNOWN_DTYPE, offsetof(CoreGated, activation));
  return core::append(program, check, *op, &core::Kernels::gated);
}

CoreStatus core_program_select(CoreProgram* program, const CoreSelect* op) {
  Check check(program);
  if (!check.pointer(op, 0).ok()) return check.result();
  check.value(op->x, 0, offsetof(CoreSelect, x)).value(op->out, op->x.width, offsetof(CoreSelect, out));
  check.that(op->x.rows == CORE_ROWS_TOKENS, CORE_BAD_VALUE, offsetof(CoreSelect, x));
  check.that(op->out.rows == CORE_ROWS_LOGITS, CORE_BAD_VALUE, offsetof(CoreSelect, out));
  return core::append(program, check, *op, &core::Kernels::select);
}

CoreStatus core_program_sample(CoreProgram* program, const CoreSample* op) {
  Check check(program);
  if (!check.pointer(op, 0).ok()) return check.result();
  check.value(op->logits, program->shape.vocab, offsetof(CoreSample, logits));
  check.that(op->logits.rows == CORE_ROWS_LOGITS, CORE_BAD_VALUE, offsetof(CoreSample, logits));
  return core::append(program, check, *op, &core::Kernels::sample);
}
