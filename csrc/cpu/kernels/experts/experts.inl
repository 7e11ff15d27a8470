// Mixtures of experts: products of the rows of each expert, and their sums. Those of an expert that has no rows are not
// computed, and its weights are not read.
//
// A row's sum is in the order of its experts' scores, and its products are those of any number of rows (linear.inl), so
// that a row's output does not depend on other rows.

// ---- phase 2: activations of each slot ----

int64_t slot_jobs(const void* data, const Step& step) {
  const auto& op = *static_cast<const CoreExperts*>(data);
  return step.rows(op.x) * op.used;
}

void fill_slots(const void* data, const Step& step, int64_t first, int64_t last, Thread&) {
  const auto& op = *static_cast<const CoreExperts*>(data);
  const Slots slots = slots_of(op, step);
  for (int64_t slot = first; slot < last; slot++) {
    const float* x = step.row(op.x, slots.rows[slot]);
    fill_forms(slots.x, slot, x);
    if (slots.floats == nullptr) continue;
    __builtin_memcpy(slots.floats + slot * op.x.width, x, static_cast<size_t>(op.x.width) * sizeof(float));
  }
}

// ---- phase 3: gates ----

int64_t gate_jobs(const void* data, const Step& step, int32_t node) {
  const auto& op = *static_cast<const CoreExperts*>(data);
  return step.rows(op.x) == 0
             ? 0
             : *slots_of(op, step).num_groups * node_tiles(WeightLayout(op.experts->gate), step, node).count;
}

// Call run(expert, tile, group) for each of jobs first ... last - 1: tiles of matrices like this one, group by group.
template <typename Run>
void for_tiles(const CoreExperts& op, const Step& step, const Slots& slots, const CoreWeight& like, int64_t first,
               int64_t last, int32_t node, Run run) {
  const NodePart own = node_tiles(WeightLayout(like), step, node);
  for (int64_t job = first; job < last; job++) {
    const SlotGroup& group = slots.groups[job / own.count];
    run(op.experts[group.expert], own.first + job % own.count, group);
  }
}

void release_tiles([[maybe_unused]] const TileShape& shape) {
#ifdef __AMX_BF16__
  if (shape.rows != 0) _tile_release();
#endif
}

void multiply_gates(const void* data, const Step& step, int64_t first, int64_t last, Thread& thread) {
  const auto& op = *static_cast<const CoreExperts*>(data);
  const Slots slots = slots_of(op, step);
  const int64_t rows = step.rows(op.x);
  TileShape shape;
  const auto run = [&](const CoreExpert& expert, int64_t tile, const SlotGroup& group) {
    const TileJob gate = {expert.gate, WeightLayout(expert.gate), expert.gate_bias, tile, group.first, group.last};
    const TileJob up = {expert.up, WeightLayout(expert.up), expert.up_bias, tile, group.first, group.last};
    run_gated(gate, up, op.activation, slots.gated, slots.x, rows, thread.scratch, shape);
  };
  for_tiles(op, step, slots, op.experts->gate, first, last, thread.node, run);
  release_tiles(shape);
}

// ---- phase 4: outputs of the gates of other ranks ----

int64_t meet_inner_jobs(const void* data, const Step& step) {
  const auto& op = *static_cast<const CoreExperts*>(data);
  return is_cut(op) && step.rows(op.x) > 0;
}

// ---- phase 5: activations of `down` ----

int64_t convert_inner_jobs(const void* data, const Step& step) {
  const auto& op = *static_cast<const CoreExperts*>(data);
  const Rows inner = slots_of(op, step).inner;
  return !is_cut(op) && inner.pairs == nullptr && inner.planes.count == 0 ? 0 : slot_jobs(data, step);
}

void convert_inner(const void* data, const Step& step, int64_t first, int64_t last, Thread&) {
  const auto& op = *static_cast<const CoreExperts*>(data);
  const Slots slots = slots_of(op, step);
  const int64_t width = slots.inner.width;
  for (int64_t slot = first; slot < last; slot++) {
    if (slots.joined != nullptr) {
      join_parts(*step.exchange, slot, op.experts->gate.outputs, slots.joined + slot * width, width);
    }
    fill_forms(slots.inner, slot, slots.inner.floats + slot * width);
  }
}

// ---- phase 6: outputs of each slot ----

int64_t down_jobs(const void* data, const Step& step, int32_t node) {
  const auto& op = *static_cast<const CoreExperts*>(data);
  return step.rows(op.x) == 0
             ? 0
             : *slots_of(op, step).num_groups * node_tiles(WeightLayout(op.experts->down), step, node).count;
}

void multiply_down(const void* data, const Step& step, int64_t first, int64_t last, Thread& thread) {
  const auto& op = *static_cast<const CoreExperts*>(data);
  const Slots slots = slots_of(op, step);
  const int64_t rows = step.rows(op.x);
  TileShape shape;
  const auto run = [&](const CoreExpert& expert, int64_t tile, const SlotGroup& group) {
    const TileJob down = {expert.down, WeightLayout(expert.down), expert.down_bias, tile, group.first, group.last};
    run_job(down, slots.inner, rows, down.places(slots.outs, op.out.width), thread.scratch, shape);
  };
  for_tiles(op, step, slots, op.experts->down, first, last, thread.node, run);
  release_tiles(shape);
}

// ---- phase 7: sums of each row ----

constexpr int64_t kEntriesOfSum = 1024;  // of a job

int64_t sum_jobs(const void* data, const Step& step) {
  const auto& op = *static_cast<const CoreExperts*>(data);
  return step.rows(op.x) * part_of(op.out.width, kEntriesOfSum);
}

// The entries from `at` on of a row.
void sum_entries(const CoreExperts& op, const Step& step, const Slots& slots, int64_t row, int64_t at, int64_t count) {
  const int32_t* slot = slots.slots + row * op.used;
  const float* weights = slots.weights + row * op.used;
  const float* shared = op.shared.width == 0 ? nullptr : step.row(op.shared, row);
  const float score = op.score.width == 0 ? 0 : *step.row(op.score, row);
  const Vec factor = Vec::all(op.score.width == 0 ? 1.0f : 1.0f / (1.0f + __builtin_expf(-score)));
  for (int64_t i = at; i < at + count; i += Vec::kLanes) {
    const int64_t left = at + count - i, lanes = left < Vec::kLanes ? left : Vec::kLanes;
    Vec total = Vec::zero();
    for (int32_t k = 0; k < op.used; k++) {
      total =
          fma(Vec::load_first(slots.outs + slot[k] * int64_t{op.out.width} + i, lanes), Vec::all(weights[k]), total);
    }
    if (shared != nullptr) total = fma(Vec::load_first(shared + i, lanes), factor, total);
    total.store_first(step.row(op.out, row) + i, lanes);
  }
}

void sum_rows(const void* data, const Step& step, int64_t first, int64_t last, Thread&) {
  const auto& op = *static_cast<const CoreExperts*>(data);
  const Slots slots = slots_of(op, step);
  const int64_t width = op.out.width, parts = part_of(width, kEntriesOfSum);
  for (int64_t job = first; job < last; job++) {
    const int64_t at = job % parts * kEntriesOfSum, left = width - at;
    sum_entries(op, step, slots, job / parts, at, left < kEntriesOfSum ? left : kEntriesOfSum);
  }
}

int64_t experts_shared(const void* data, const CoreShape& shape, int32_t) {
  const auto& op = *static_cast<const CoreExperts*>(data);
  const int64_t most = op.x.rows == CORE_ROWS_TOKENS ? shape.max_tokens : shape.max_logits;
  int64_t few = 0, many = 0;
  slots_at(op, most < kMostWholeRows ? most : kMostWholeRows, nullptr, &few);
  slots_at(op, most, nullptr, &many);
  return few > many ? few : many;
}

int64_t experts_scratch(const void*, const CoreShape&, int32_t) {
  return kPieceBegin + kPieceBytes;
}

int64_t experts_part(const void* data, const CoreShape& shape) {
  const auto& op = *static_cast<const CoreExperts*>(data);
  const int64_t most = op.x.rows == CORE_ROWS_TOKENS ? shape.max_tokens : shape.max_logits;
  return is_cut(op) ? most * op.used * op.experts->gate.outputs * static_cast<int64_t>(sizeof(float)) : 0;
}

const Kernel experts_kernel = {{{route_jobs, route},
                                {group_jobs, group},
                                {slot_jobs, fill_slots},
                                {nullptr, multiply_gates, gate_jobs},
                                {meet_inner_jobs, meet},
                                {convert_inner_jobs, convert_inner},
                                {nullptr, multiply_down, down_jobs},
                                {sum_jobs, sum_rows}},
                               experts_shared,
                               experts_scratch,
                               experts_part};
