// Low-rank additions to products, for the rows of sequences that name an adapter. Rows of one adapter are computed
// together, so that its factors are read once for a tile of rows. Every sum has one order, whatever is beside it.

constexpr int64_t kRankJob = 8;      // ranks of a job that shrinks rows
constexpr int64_t kOutputsJob = 512;  // outputs of a job that expands them

// One tile of rows, and a range of ranks or outputs of one of the products.
struct AdaptJob {
  const AdapterTile* tile;
  int32_t product;
  int64_t part;
};

AdaptJob adapt_job(const CoreAdapt& op, const Step& step, int64_t job, int64_t parts) {
  return {step.adapter_tiles + job / (parts * op.count), static_cast<int32_t>(job / parts % op.count), job % parts};
}

const CoreLowRank& low_rank(const CoreAdapt& op, const AdaptJob& job) {
  return op.products[job.product].adapters[job.tile->adapter];
}

// ---- shrink: hidden = x * a^T ----

// sums[r][c] = x[r] * a[c], for some rows and ranks.
template <int kRows, int kRanks>
void shrink_rows(const float* const* x, const float* a, int64_t inputs, float* const* sums) {
  constexpr int64_t kLanes = Vec::kLanes;
  Vec total[kRows][kRanks];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 8
    for (int c = 0; c < kRanks; c++) total[r][c] = Vec::zero();
  for (int64_t k = 0; k < inputs; k += kLanes) {
    const int64_t lanes = inputs - k < kLanes ? inputs - k : kLanes;
    Vec in[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) in[r] = Vec::load_first(x[r] + k, lanes);
#pragma GCC unroll 8
    for (int c = 0; c < kRanks; c++) {
      const Vec weights = Vec::load_first(a + c * inputs + k, lanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; r++) total[r][c] = fma(in[r], weights, total[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 8
    for (int c = 0; c < kRanks; c++) sums[r][c] = sum(total[r][c]);
}

template <int kRows>
void shrink_ranks(const float* const* x, const float* a, int64_t inputs, int64_t ranks, float* const* hidden) {
  constexpr int kRanks = 8 / kRows;
  for (int64_t c = 0; c < ranks;) {
    float* sums[kRows];
    for (int r = 0; r < kRows; r++) sums[r] = hidden[r] + c;
    if (ranks - c >= kRanks) {
      shrink_rows<kRows, kRanks>(x, a + c * inputs, inputs, sums);
      c += kRanks;
    } else {
      shrink_rows<kRows, 1>(x, a + c * inputs, inputs, sums);
      c += 1;
    }
  }
}

int64_t shrink_parts(const CoreAdapt& op) {
  return (op.rank + kRankJob - 1) / kRankJob;
}

int64_t shrink_jobs(const void* data, const Step& step) {
  const auto& op = *static_cast<const CoreAdapt*>(data);
  return int64_t{step.num_adapter_tiles} * op.count * shrink_parts(op);
}

void shrink(const void* data, const Step& step, int64_t first, int64_t last, Thread&) {
  const auto& op = *static_cast<const CoreAdapt*>(data);
  for (int64_t number = first; number < last; number++) {
    const AdaptJob job = adapt_job(op, step, number, shrink_parts(op));
    const CoreLowRank& factors = low_rank(op, job);
    const int64_t begin = job.part * kRankJob, left = factors.rank - begin;
    const int64_t ranks = left < kRankJob ? left : kRankJob;
    const float* a = factors.a + begin * op.x.width;
    for (int32_t i = 0; i < job.tile->count && ranks > 0;) {
      const int32_t* rows = step.adapted + job.tile->first + i;
      const bool two = job.tile->count - i >= 2;
      const float* x[2] = {step.row(op.x, rows[0]), two ? step.row(op.x, rows[1]) : nullptr};
      const int64_t at = job.product * op.rank + begin;
      float* hidden[2] = {step.row(op.hidden, rows[0]) + at, two ? step.row(op.hidden, rows[1]) + at : nullptr};
      if (two) {
        shrink_ranks<2>(x, a, op.x.width, ranks, hidden);
      } else {
        shrink_ranks<1>(x, a, op.x.width, ranks, hidden);
      }
      i += two ? 2 : 1;
    }
  }
}

// ---- expand: out += hidden * b ----

// out[0 ... outputs - 1] += hidden * b, kRegisters registers at a time; b has `stride` floats a rank.
template <int kRegisters>
void expand_registers(const float* hidden, const float* b, int64_t rank, int64_t stride, float* out, int64_t outputs) {
  constexpr int64_t kLanes = Vec::kLanes;
  Vec total[kRegisters];
  int64_t lanes[kRegisters];
#pragma GCC unroll 8
  for (int c = 0; c < kRegisters; c++) {
    const int64_t left = outputs - c * kLanes;
    lanes[c] = left < kLanes ? left : kLanes;
    total[c] = Vec::zero();
  }
  for (int64_t r = 0; r < rank; r++) {
    const Vec all = Vec::all(hidden[r]);
#pragma GCC unroll 8
    for (int c = 0; c < kRegisters; c++) {
      total[c] = fma(Vec::load_first(b + r * stride + c * kLanes, lanes[c]), all, total[c]);
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < kRegisters; c++) {
    (Vec::load_first(out + c * kLanes, lanes[c]) + total[c]).store_first(out + c * kLanes, lanes[c]);
  }
}

void expand_row(const float* hidden, const CoreLowRank& factors, int64_t stride, int64_t begin, float* out,
                int64_t outputs) {
  constexpr int kAtOnce = 4;
  for (int64_t o = 0; o < outputs;) {
    const int64_t left = outputs - o;
    const float* b = factors.b + begin + o;
    if (left > (kAtOnce - 1) * Vec::kLanes) {
      expand_registers<kAtOnce>(hidden, b, factors.rank, stride, out + o, left);
      o += kAtOnce * Vec::kLanes;
    } else {
      expand_registers<1>(hidden, b, factors.rank, stride, out + o, left);
      o += Vec::kLanes;
    }
  }
}

int64_t expand_parts(const CoreAdapt& op) {
  int64_t widest = 0;
  for (int32_t i = 0; i < op.count; i++) {
    if (op.products[i].out.width > widest) widest = op.products[i].out.width;
  }
  return (widest + kOutputsJob - 1) / kOutputsJob;
}

int64_t expand_jobs(const void* data, const Step& step) {
  const auto& op = *static_cast<const CoreAdapt*>(data);
  return int64_t{step.num_adapter_tiles} * op.count * expand_parts(op);
}

void expand(const void* data, const Step& step, int64_t first, int64_t last, Thread&) {
  const auto& op = *static_cast<const CoreAdapt*>(data);
  for (int64_t number = first; number < last; number++) {
    const AdaptJob job = adapt_job(op, step, number, expand_parts(op));
    const CoreLowRank& factors = low_rank(op, job);
    const CoreValue& out = op.products[job.product].out;
    const int64_t begin = job.part * kOutputsJob, left = out.width - begin;
    const int64_t outputs = left < kOutputsJob ? left : kOutputsJob;
    for (int32_t i = 0; i < job.tile->count && factors.rank > 0 && outputs > 0; i++) {
      const int32_t row = step.adapted[job.tile->first + i];
      const float* hidden = step.row(op.hidden, row) + job.product * op.rank;
      expand_row(hidden, factors, out.width, begin, step.row(out, row) + begin, outputs);
    }
  }
}

const Kernel adapt_kernel = {{{shrink_jobs, shrink}, {expand_jobs, expand}}, nullptr, nullptr};
