// Exchanges with other ranks (cpu/exchange.h): each gives its part of every row, and takes those of all.

void copy_floats(float* to, const float* from, int64_t count) {
  __builtin_memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

// ---- phase 0: this rank's part ----

template <typename Op>
int64_t give_jobs(const void* op, const Step& step) {
  return step.rows(static_cast<const Op*>(op)->part);
}

template <typename Op>
void give(const void* data, const Step& step, int64_t first, int64_t last, Thread&) {
  const CoreValue& part = static_cast<const Op*>(data)->part;
  const int64_t begin = first * part.width;
  copy_floats(step.exchange->own() + begin, step.row(part, first), last * part.width - begin);
}

// ---- phase 1: those of the others ----

template <typename Op>
int64_t meet_jobs(const void* op, const Step& step) {
  return give_jobs<Op>(op, step) > 0;
}

// Where a rank does not come, the run ends after this phase.
void meet(const void*, const Step& step, int64_t, int64_t, Thread&) {
  step.exchange->meet();
}

// ---- phase 2: all parts ----

// Write one row of the parts, [rows][width] each, side by side; the last one may have padding.
void join_parts(const CoreExchange& exchange, int64_t row, int64_t width, float* out, int64_t total) {
  for (int32_t rank = 0; rank * width < total; rank++) {
    const int64_t at = rank * width, left = total - at;
    copy_floats(out + at, exchange.part(rank) + row * width, left < width ? left : width);
  }
}

void take(const void* data, const Step& step, int64_t first, int64_t last, Thread&) {
  const auto& op = *static_cast<const CoreGather*>(data);
  const int64_t width = op.part.width;
  for (int64_t row = first; row < last; row++) {
    float* out = step.row(op.out, row);
    if (op.table_rows == 0) {
      join_parts(*step.exchange, row, width, out, op.out.width);
    } else {
      const int32_t owner = step.batch->token_ids[row] / op.table_rows;
      copy_floats(out, step.exchange->part(owner) + row * width, width);
    }
    if (prepares(step)) prepare_row(step, row);
  }
}

// out = the sum of a row of all ranks, rank 0's first.
void add_parts(const CoreExchange& exchange, int64_t row, int64_t width, float* out) {
  constexpr int64_t kLanes = Vec::kLanes;
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t lanes = width - i < kLanes ? width - i : kLanes, at = row * width + i;
    Vec total = Vec::load_first(exchange.part(0) + at, lanes);
    for (int32_t rank = 1; rank < exchange.ranks; rank++) {
      total = total + Vec::load_first(exchange.part(rank) + at, lanes);
    }
    total.store_first(out + i, lanes);
  }
}

void add_up(const void* data, const Step& step, int64_t first, int64_t last, Thread&) {
  const auto& op = *static_cast<const CoreReduce*>(data);
  for (int64_t row = first; row < last; row++) {
    add_parts(*step.exchange, row, op.part.width, step.row(op.out, row));
  }
}

template <typename Op>
int64_t given_bytes(const void* data, const CoreShape& shape) {
  const CoreValue& part = static_cast<const Op*>(data)->part;
  const int64_t rows = part.rows == CORE_ROWS_TOKENS ? shape.max_tokens : shape.max_logits;
  return rows * part.width * static_cast<int64_t>(sizeof(float));
}

// The kernel of an op whose last phase takes what all ranks have given.
template <typename Op>
constexpr Kernel exchange_kernel(void (*take)(const void*, const Step&, int64_t, int64_t, Thread&)) {
  return {{{give_jobs<Op>, give<Op>}, {meet_jobs<Op>, meet}, {give_jobs<Op>, take}}, nullptr, nullptr, given_bytes<Op>};
}

const Kernel gather_kernel = exchange_kernel<CoreGather>(take);
const Kernel reduce_kernel = exchange_kernel<CoreReduce>(add_up);
