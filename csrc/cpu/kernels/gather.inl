// Exchanges with other ranks (cpu/exchange.h): each gives its part of every row, and takes those of all.

void copy_floats(float* to, const float* from, int64_t count) {
  __builtin_memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

// ---- phase 0: this rank's part ----

int64_t give_jobs(const void* op, const Step& step) {
  return step.rows(static_cast<const CoreGather*>(op)->part);
}

void give(const void* data, const Step& step, int64_t first, int64_t last, Thread&) {
  const CoreValue& part = static_cast<const CoreGather*>(data)->part;
  const int64_t begin = first * part.width;
  copy_floats(step.exchange->own() + begin, step.row(part, first), last * part.width - begin);
}

// ---- phase 1: those of the others ----

int64_t meet_jobs(const void* op, const Step& step) {
  return give_jobs(op, step) > 0;
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

int64_t gather_part(const void* data, const CoreShape& shape) {
  const CoreValue& part = static_cast<const CoreGather*>(data)->part;
  const int64_t rows = part.rows == CORE_ROWS_TOKENS ? shape.max_tokens : shape.max_logits;
  return rows * part.width * static_cast<int64_t>(sizeof(float));
}

const Kernel gather_kernel = {{{give_jobs, give}, {meet_jobs, meet}, {give_jobs, take}}, nullptr, nullptr, gather_part};
