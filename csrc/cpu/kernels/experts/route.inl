// Mixtures of experts: the rows of each expert.

constexpr int64_t kFewRoutes = 16;  // that one job chooses for, instead of a phase of its own

// Rows of one expert, not more than a block: slots first ... last - 1.
struct SlotGroup {
  int32_t expert, first, last;
};

// The shared scratch of a mixture. A slot is one expert of one row; slots are ordered by expert, then by row.
struct Slots {
  int32_t* slots;     // [rows][used]: until they are grouped, the numbers of the experts
  float* weights;     // [rows][used]
  float* compared;    // [rows][count] what experts are chosen by; null: the scores
  float* by_group;    // [rows][groups] what groups are chosen by; null: all are allowed
  int32_t* rows;      // [slots] the row of each slot
  int32_t* ends;      // [count] while grouping: the end of each expert's slots so far
  SlotGroup* groups;  // [num_groups]
  int64_t* num_groups;
  Rows x;         // activations of each slot
  float* floats;  // [slots][hidden], x as floats; null: not needed
  Rows inner;     // inputs of `down`; their floats are the outputs of the gates
  float* gated;   // [slots][width], what this rank has of them: the same, if that is all
  float* joined;  // [slots][width of all ranks], the same; null: gated is all
  float* outs;    // [slots][width of the op's output]
};

// True if other ranks have outputs of the gates too.
bool is_cut(const CoreExperts& op) {
  return op.experts->down.inputs != op.experts->gate.outputs;
}

// Takes pieces of scratch, each aligned to 64.
struct Taker {
  std::byte* at;

  template <typename T>
  T* take(int64_t count) {
    std::byte* const taken = at;
    at += up_to(count * static_cast<int64_t>(sizeof(T)), 64);
    return reinterpret_cast<T*>(taken);
  }
  Rows take(const Forms& forms, int64_t width, int64_t rows) {
    int64_t bytes;
    const Rows taken = lay_out(forms, width, rows, at, &bytes);
    at += up_to(bytes, 64);
    return taken;
  }
};

constexpr int64_t kReadBeyond = 32;  // slots behind the last one that products of whole tiles read

// Return the scratch for a number of rows, laid out from base on, and its size.
Slots slots_at(const CoreExperts& op, int64_t rows, std::byte* base, int64_t* bytes) {
  const CoreExpert& expert = *op.experts;
  const int64_t count = rows * op.used, width = expert.gate.outputs, all = expert.down.inputs;
  Forms outer{op.activations == CORE_ACTIVATIONS_INT8}, inner{op.activations == CORE_ACTIVATIONS_INT8};
  outer.add(expert.gate, rows);
  outer.add(expert.up, rows);
  inner.add(expert.down, rows);
  Taker taker = {base};
  Slots out{};
  out.slots = taker.take<int32_t>(count);
  out.weights = taker.take<float>(count);
  const bool has_own = op.sigmoid != 0 || op.correction != nullptr || is_limited(op);
  out.compared = has_own ? taker.take<float>(rows * op.count) : nullptr;
  out.by_group = is_limited(op) ? taker.take<float>(rows * op.groups) : nullptr;
  out.rows = taker.take<int32_t>(count);
  out.ends = taker.take<int32_t>(op.count);
  out.groups = taker.take<SlotGroup>(count / kRowBlock + (count < op.count ? count : op.count));
  out.num_groups = taker.take<int64_t>(1);
  out.x = taker.take(outer, op.x.width, count + kReadBeyond);
  if (outer.floats) out.x.floats = out.floats = taker.take<float>(count * op.x.width);
  out.gated = is_cut(op) ? nullptr : taker.take<float>(count * width);
  out.joined = is_cut(op) ? taker.take<float>(count * all) : nullptr;
  out.inner = taker.take(inner, all, count + kReadBeyond);
  out.inner.floats = is_cut(op) ? out.joined : out.gated;
  out.outs = taker.take<float>(count * op.out.width);
  *bytes = taker.at - base;
  return out;
}

Slots slots_of(const CoreExperts& op, const Step& step) {
  int64_t bytes;
  Slots slots = slots_at(op, step.rows(op.x), step.shared, &bytes);
  if (is_cut(op)) slots.gated = step.exchange->own();  // Read by nobody here: after the exchange, it is the next one's.
  return slots;
}

Choice choice_of(const CoreExperts& op, const Slots& slots, int64_t row) {
  float* compared = slots.compared == nullptr ? nullptr : slots.compared + row * op.count;
  float* by_group = slots.by_group == nullptr ? nullptr : slots.by_group + row * op.groups;
  return {compared, by_group, slots.slots + row * op.used, slots.weights + row * op.used};
}

void route_rows(const CoreExperts& op, const Step& step, const Slots& slots, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; row++) choose_for_row(op, step.row(op.scores, row), choice_of(op, slots, row));
}

// ---- phase 0: experts of each row ----

int64_t route_jobs(const void* data, const Step& step) {
  const int64_t rows = step.rows(static_cast<const CoreExperts*>(data)->x);
  return rows > kFewRoutes ? rows : 0;
}

void route(const void* data, const Step& step, int64_t first, int64_t last, Thread&) {
  const auto& op = *static_cast<const CoreExperts*>(data);
  route_rows(op, step, slots_of(op, step), first, last);
}

// ---- phase 1: rows of each expert ----

int64_t group_jobs(const void* data, const Step& step) {
  return step.rows(static_cast<const CoreExperts*>(data)->x) > 0;
}

// Write the groups of experts that have slots; `ends` becomes the first slot of each expert.
void begin_groups(const CoreExperts& op, const Slots& slots) {
  int64_t groups = 0;
  int32_t end = 0;
  for (int32_t expert = 0; expert < op.count; expert++) {
    const int32_t first = end;
    end += slots.ends[expert];
    slots.ends[expert] = first;
    for (int32_t at = first; at < end; at += kRowBlock) {
      const auto last = static_cast<int32_t>(at + kRowBlock);
      slots.groups[groups++] = {expert, at, last < end ? last : end};
    }
  }
  *slots.num_groups = groups;
}

void group(const void* data, const Step& step, int64_t, int64_t, Thread&) {
  const auto& op = *static_cast<const CoreExperts*>(data);
  const Slots slots = slots_of(op, step);
  const int64_t rows = step.rows(op.x), count = rows * op.used;
  if (rows <= kFewRoutes) route_rows(op, step, slots, 0, rows);
  __builtin_memset(slots.ends, 0, static_cast<size_t>(op.count) * sizeof(int32_t));
  for (int64_t i = 0; i < count; i++) slots.ends[slots.slots[i]]++;
  begin_groups(op, slots);
  for (int64_t i = 0; i < count; i++) {
    const int32_t slot = slots.ends[slots.slots[i]]++;
    slots.rows[slot] = static_cast<int32_t>(i / op.used);
    slots.slots[i] = slot;
  }
}
