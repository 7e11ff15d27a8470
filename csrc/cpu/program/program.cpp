// Recording: ops are checked when appended, so that a replay only has to check the batch.
#include "cpu/program/program.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "common/check.h"
#include "cpu/weight.h"

namespace core {
namespace {

CoreStatus check_shape(const CoreShape* shape) {
  Check check(shape);
  if (!check.ok()) return check.result();
  check.that(shape->workspace >= 1 && shape->workspace <= int64_t{1} << 48, CORE_BAD_EXTENT, shape->workspace);
  for (const int32_t* extent :
       {&shape->max_tokens, &shape->max_sequences, &shape->max_logits, &shape->max_positions, &shape->layers,
        &shape->heads, &shape->kv_heads, &shape->head_dim, &shape->block_size, &shape->vocab}) {
    check.extent(*extent);
  }
  check.that(check.ok() && shape->heads % shape->kv_heads == 0, CORE_BAD_SHAPE, shape->heads);
  check.that(shape->head_dim % 16 == 0, CORE_BAD_SHAPE, shape->head_dim);
  check.that(shape->block_size % kPageTokens == 0, CORE_BAD_SHAPE, shape->block_size);
  check.count(shape->adapters);
  check.that(shape->ranks >= 0 && shape->ranks <= kMostRanks, CORE_BAD_COUNT, shape->ranks);
  check.that(shape->rank >= 0 && shape->rank < std::max(shape->ranks, 1), CORE_BAD_SHAPE, shape->rank);
  check.that(shape->kv >= CORE_KV_FLOAT32 && shape->kv <= CORE_KV_UINT4, CORE_UNKNOWN_DTYPE, shape->kv);
  return check.result();
}

// Checks one op of a program.
class OpCheck : public Check {
 public:
  OpCheck(const CoreProgram& program, const void* args) : Check(args), shape(program.shape), program_(program) {}

  // Check that a value lies in the workspace and has this width; width 0: any.
  void value(const CoreValue& value, int64_t width = 0) {
    const int64_t rows = value.rows == CORE_ROWS_TOKENS ? shape.max_tokens : shape.max_logits;
    that(value.rows == CORE_ROWS_TOKENS || value.rows == CORE_ROWS_LOGITS, CORE_BAD_VALUE, value);
    that(value.width > 0 && (width == 0 || value.width == width), CORE_BAD_VALUE, value);
    that(value.offset >= 0 && value.offset % 16 == 0, CORE_BAD_VALUE, value);
    that(ok() && value.offset + rows * value.width <= shape.workspace, CORE_BAD_VALUE, value);
  }

  // Check also that a value has these rows.
  void value_of(CoreRows rows, const CoreValue& value, int64_t width = 0) {
    this->value(value, width);
    that(value.rows == rows, CORE_BAD_VALUE, value);
  }

  // Check that a value has the rows and the width of another.
  void alike(const CoreValue& value, const CoreValue& other) {
    this->value(value, other.width);
    that(value.rows == other.rows, CORE_BAD_VALUE, value);
  }

  // Check a packed matrix; false: it must not be read.
  bool weight(const CoreWeight* const& weight) {
    pointer(weight);
    return ok() && matrix(*weight, weight);
  }

  // Check a packed matrix of a field that points to several.
  template <typename Field>
  bool matrix(const CoreWeight& weight, const Field& field) {
    const CoreStatus described = check(weight);
    that(described == CORE_OK, code_of(described), field);
    that(weight.data != nullptr, CORE_NULL_POINTER, field);
    that(weight.shards <= 1 || weight.shards == program_.cpu.pool.nodes(), CORE_BAD_SHAPE, field);
    that(reinterpret_cast<uintptr_t>(weight.data) % 64 == 0, CORE_MISALIGNED, field);
    return ok();
  }

  // Check that a rank holds as many rows of the embedding table that all ranks have a row for each id.
  template <typename Field>
  void table(int64_t rows, const Field& field) {
    that(shape.ranks > 1 ? rows * shape.ranks >= shape.vocab : rows == shape.vocab, CORE_BAD_SHAPE, field);
  }

  void layer(const int32_t& layer) { that(layer >= 0 && layer < shape.layers, CORE_BAD_SHAPE, layer); }

  const CoreShape& shape;

 private:
  const CoreProgram& program_;
};

bool is_gate(int32_t activation) {
  return activation >= CORE_GATE_SILU && activation <= CORE_GATE_CLAMPED;
}

bool is_precision(int32_t activations) {
  return activations == CORE_ACTIVATIONS_FULL || activations == CORE_ACTIVATIONS_INT8;
}

void check_op(OpCheck& check, const CoreEmbed& op) {
  if (!check.weight(op.table)) return;
  check.value_of(CORE_ROWS_TOKENS, op.out, op.table->inputs);
  check.table(op.table->outputs, op.table);
}

void check_op(OpCheck& check, const CoreNorm& op) {
  check.value(op.x);
  check.alike(op.out, op.x);
  if (op.residual.width != 0) {
    check.alike(op.residual, op.x);
    check.alike(op.residual_out, op.x);
  }
  check.pointer(op.weight).not_negative(op.eps);
}

void check_op(OpCheck& check, const CoreLayerNorm& op) {
  check.value(op.x);
  check.alike(op.out, op.x);
  check.pointer(op.weight).optional(op.bias, sizeof(float)).not_negative(op.eps);
}

void check_op(OpCheck& check, const CoreLinear& op) {
  check.value(op.x);
  check.that(op.count >= 1 && op.count <= 3, CORE_BAD_EXTENT, op.count);
  check.that(is_precision(op.activations), CORE_UNKNOWN_DTYPE, op.activations);
  for (int32_t i = 0; check.ok() && i < op.count; i++) {
    const CoreProjection& projection = op.projections[i];
    if (!check.weight(projection.weight)) return;
    check.that(projection.weight->inputs == op.x.width, CORE_BAD_VALUE, projection.weight);
    check.value(projection.out, projection.weight->outputs);
    check.that(projection.out.rows == op.x.rows, CORE_BAD_VALUE, projection.out);
  }
}

void check_op(OpCheck& check, const CoreAdapt& op) {
  check.value_of(CORE_ROWS_TOKENS, op.x);
  check.that(op.count >= 1 && op.count <= 3, CORE_BAD_EXTENT, op.count).extent(op.rank);
  if (check.ok()) check.value_of(CORE_ROWS_TOKENS, op.hidden, int64_t{op.count} * op.rank);
  for (int32_t i = 0; check.ok() && i < op.count; i++) {
    check.value_of(CORE_ROWS_TOKENS, op.products[i].out);
    check.pointer(op.products[i].adapters);
  }
}

void check_op(OpCheck& check, const CoreRopeAppend& op) {
  const int64_t dim = check.shape.head_dim;
  check.value_of(CORE_ROWS_TOKENS, op.q, check.shape.heads * dim);
  check.value_of(CORE_ROWS_TOKENS, op.k, check.shape.kv_heads * dim);
  check.alike(op.q_out, op.q);
  check.alike(op.v, op.k);
  const bool even = op.rotary_dim >= 0 && op.rotary_dim % 2 == 0 && op.rotary_dim <= dim;
  check.that(even, CORE_BAD_SHAPE, op.rotary_dim);
  if (op.rotary_dim != 0) check.pointer(op.cos).pointer(op.sin);
  check.not_negative(op.eps);
  check.layer(op.layer);
}

void check_op(OpCheck& check, const CoreAttention& op) {
  check.value_of(CORE_ROWS_TOKENS, op.q, int64_t{check.shape.heads} * check.shape.head_dim);
  check.alike(op.out, op.q);
  check.layer(op.layer);
  check.optional(op.sinks, sizeof(float));
  check.count(op.window).that(std::isfinite(op.scale), CORE_BAD_NUMBER, op.scale).not_negative(op.soft_cap);
}

void check_op(OpCheck& check, const CoreGated& op) {
  check.value(op.gate);
  if (op.up.width != 0) check.alike(op.up, op.gate);
  check.alike(op.out, op.gate);
  check.that(is_gate(op.activation), CORE_UNKNOWN_DTYPE, op.activation);
  check.that(op.up.width != 0 || op.activation != CORE_GATE_CLAMPED, CORE_BAD_VALUE, op.up);
}

void check_op(OpCheck& check, const CoreScaled& op) {
  check.value(op.x);
  check.alike(op.out, op.x);
  if (op.added.width != 0) check.alike(op.added, op.x);
  check.that(std::isfinite(op.scale), CORE_BAD_NUMBER, op.scale).not_negative(op.soft_cap);
}

void check_op(OpCheck& check, const CoreGather& op) {
  check.value(op.part);
  check.value(op.out);
  check.that(op.out.rows == op.part.rows && check.shape.ranks > 1, CORE_BAD_VALUE, op.out);
  check.count(op.table_rows);
  if (op.table_rows == 0) {
    check.that(op.out.width <= int64_t{op.part.width} * check.shape.ranks, CORE_BAD_VALUE, op.out);
  } else {
    check.value_of(CORE_ROWS_TOKENS, op.out, op.part.width);
    check.table(op.table_rows, op.table_rows);
  }
}

void check_op(OpCheck& check, const CoreReduce& op) {
  check.value(op.part);
  check.alike(op.out, op.part);
  check.that(check.shape.ranks > 1, CORE_BAD_VALUE, op.out);
}

void check_op(OpCheck& check, const CoreColumns& op) {
  check.value(op.x);
  check.value(op.out);
  check.that(op.out.rows == op.x.rows, CORE_BAD_VALUE, op.out);
  check.that(op.first >= 0 && op.first <= op.x.width - op.out.width, CORE_BAD_EXTENT, op.first);
}

// Check one expert, like the first one.
void check_expert(OpCheck& check, const CoreExperts& op, const CoreExpert& expert) {
  const CoreExpert& first = *op.experts;
  const int64_t hidden = op.x.width, width = first.gate.outputs, inner = first.down.inputs;
  for (const CoreWeight* weight : {&expert.gate, &expert.up, &expert.down}) {
    if (!check.matrix(*weight, op.experts)) return;
  }
  const auto alike = [&](const CoreWeight& one, const CoreWeight& other, int64_t outputs, int64_t inputs) {
    check.that(one.outputs == outputs && one.inputs == inputs, CORE_BAD_SHAPE, op.experts);
    check.that(one.format == other.format && one.group == other.group, CORE_BAD_SHAPE, op.experts);
    check.that(one.codebook == other.codebook && one.shards == other.shards, CORE_BAD_SHAPE, op.experts);
    const bool same_values = std::equal(std::begin(one.values), std::end(one.values), other.values);
    check.that(one.codebook == 0 || same_values, CORE_BAD_SHAPE, op.experts);
  };
  alike(expert.gate, first.gate, width, hidden);
  alike(expert.up, first.up, width, hidden);
  alike(expert.down, first.down, op.out.width, inner);
  const bool gathered = check.shape.ranks > 1 && inner <= width * check.shape.ranks;
  check.that(inner == width || gathered, CORE_BAD_SHAPE, op.experts);
}

// Check the groups that a row's experts are of.
void check_groups(OpCheck& check, const CoreExperts& op) {
  check.that(op.groups >= 1 && op.groups <= op.count && op.count % op.groups == 0, CORE_BAD_EXTENT, op.groups);
  if (!check.ok()) return;
  const int64_t size = op.count / op.groups;
  const bool enough = op.groups_used >= 1 && op.groups_used <= op.groups && op.used <= size * op.groups_used;
  check.that(enough, CORE_BAD_EXTENT, op.groups_used);
  const bool has_two = op.correction == nullptr || op.groups_used == op.groups || size > 1;
  check.that(has_two, CORE_BAD_EXTENT, op.groups);
}

void check_op(OpCheck& check, const CoreExperts& op) {
  check.value(op.x);
  check.value(op.out, check.shape.ranks > 1 ? 0 : op.x.width);
  check.that(op.out.rows == op.x.rows, CORE_BAD_VALUE, op.out);
  check.extent(op.count);
  check.that(op.used >= 1 && op.used <= op.count, CORE_BAD_EXTENT, op.used);
  check_groups(check, op);
  check.value_of(static_cast<CoreRows>(op.x.rows), op.scores, op.count);
  if (op.shared.width != 0) check.alike(op.shared, op.out);
  if (op.score.width != 0) check.value_of(static_cast<CoreRows>(op.x.rows), op.score, 1);
  check.that(is_gate(op.activation), CORE_UNKNOWN_DTYPE, op.activation);
  check.that(is_precision(op.activations), CORE_UNKNOWN_DTYPE, op.activations);
  check.not_negative(op.mixer_threshold).that(std::isfinite(op.scale), CORE_BAD_NUMBER, op.scale);
  check.optional(op.correction, sizeof(float)).pointer(op.experts);
  for (int32_t i = 0; check.ok() && i < op.count; i++) check_expert(check, op, op.experts[i]);
}

void check_op(OpCheck& check, const CoreSelect& op) {
  check.value_of(CORE_ROWS_TOKENS, op.x);
  check.value_of(CORE_ROWS_LOGITS, op.out, op.x.width);
}

void check_op(OpCheck& check, const CoreSample& op) {
  check.value_of(CORE_ROWS_LOGITS, op.logits, check.shape.vocab);
}

template <typename Args>
CoreStatus append(CoreProgram* program, const Args* args, const Kernel Kernels::* kernel) {
  if (program == nullptr) return status(CORE_NULL_POINTER, 0);
  OpCheck check(*program, args);
  if (check.ok()) check_op(check, *args);
  if (!check.ok()) return check.result();
  try {
    // Copied: the op, and its CoreWeights (see `recorded`). What they point to stays the caller's, and is read in runs.
    program->append(recorded(*args), program->cpu.kernels.*kernel);
  } catch (const std::bad_alloc&) {
    return status(CORE_NO_MEMORY, 0);
  }
  return CORE_OK;
}

}  // namespace

EmbedOp recorded(const CoreEmbed& op) {
  return {*op.table, op.out};
}

LinearOp recorded(const CoreLinear& op) {
  LinearOp linear{op.x, {}, op.count, op.activations, 0, {}};
  for (int32_t i = 0; i < op.count; i++) {
    const auto& [weight, bias, out] = op.projections[i];
    linear.projections[i] = {*weight, WeightLayout(*weight), bias, out};
  }
  return linear;
}

}  // namespace core

CoreProgram::CoreProgram(CoreCpu& cpu, const CoreShape& shape) : cpu(cpu), shape(shape) {
  kv.page_bytes = core::page_bytes(static_cast<CoreKv>(shape.kv), shape.head_dim);
  kv.kv_heads = shape.kv_heads;
  kv.pages = shape.block_size / core::kPageTokens;
}

CoreStatus core_program_create(CoreCpu* cpu, const CoreShape* shape, CoreProgram** program) {
  if (cpu == nullptr || program == nullptr) return core::status(CORE_NULL_POINTER, 0);
  if (const CoreStatus status = core::check_shape(shape); status != CORE_OK) return status;
  *program = new (std::nothrow) CoreProgram(*cpu, *shape);
  return *program == nullptr ? core::status(CORE_NO_MEMORY, 0) : CORE_OK;
}

void core_program_destroy(CoreProgram* program) {
  delete program;
}

#define APPEND(op, Args)                                                 \
  CoreStatus core_program_##op(CoreProgram* program, const Args* args) { \
    return core::append(program, args, &core::Kernels::op);              \
  }
CORE_PROGRAM_OPS(APPEND)
