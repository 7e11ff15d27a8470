// Causal attention over pages. A job is a tile of queries of one KV head, over all of its context or over one part of
// it.
//
// The context is always split into parts of kPartTokens from position 0 on, each part into blocks of kBlockTokens, and
// the parts are joined in order: results depend neither on the other rows of a batch nor on the number of threads.

// ---- scores ----

// scores[q][token] of one page for kQueries queries.
template <typename Pages, int kQueries>
void score_page(const std::byte* page, const float* queries, int64_t dim, float* scores) {
  constexpr int64_t kRegisters = kPageTokens / Vec::kLanes;
  Vec total[kQueries][kRegisters];
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; q++)
#pragma GCC unroll 2
    for (int c = 0; c < kRegisters; c++) total[q][c] = Vec::zero();
  for (int64_t pair = 0; pair < dim / 2; pair++) {
    Vec a[kRegisters], b[kRegisters];
#pragma GCC unroll 2
    for (int c = 0; c < kRegisters; c++) Pages::load(page, pair, kPageTokens, c * Vec::kLanes, a[c], b[c]);
#pragma GCC unroll 8
    for (int q = 0; q < kQueries; q++) {
      const Vec x = Vec::all(queries[q * dim + 2 * pair]), y = Vec::all(queries[q * dim + 2 * pair + 1]);
#pragma GCC unroll 2
      for (int c = 0; c < kRegisters; c++) total[q][c] = fma(b[c], y, fma(a[c], x, total[q][c]));
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; q++)
#pragma GCC unroll 2
    for (int c = 0; c < kRegisters; c++) total[q][c].store(scores + q * kBlockTokens + c * Vec::kLanes);
}

template <typename Pages>
void score_pages(const Attend& job, const std::byte* const* pages, int64_t count) {
  const int64_t queries = job.num_queries();
  for (int64_t p = 0; p < count; p++) {
    float* scores = job.scores + p * kPageTokens;
    int64_t q = 0;
    for (; q + 4 <= queries; q += 4) {
      score_page<Pages, 4>(pages[p], job.queries + q * job.dim, job.dim, scores + q * kBlockTokens);
    }
    for (; q < queries; q++) {
      score_page<Pages, 1>(pages[p], job.queries + q * job.dim, job.dim, scores + q * kBlockTokens);
    }
  }
}

// ---- values ----

// mixed[q][...] += weights[q][token] * values[token][...] over a page, for kRegisters registers of entries.
template <typename Pages, int kQueries, int kRegisters>
void mix_page(const std::byte* values, const float* weights, int64_t dim, int64_t column, float* mixed) {
  Vec total[kQueries][kRegisters];
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; q++)
#pragma GCC unroll 4
    for (int c = 0; c < kRegisters; c++) total[q][c] = Vec::load(mixed + q * dim + column + c * Vec::kLanes);
  for (int64_t pair = 0; pair < kPageTokens / 2; pair++) {
    Vec a[kRegisters], b[kRegisters];
#pragma GCC unroll 4
    for (int c = 0; c < kRegisters; c++) Pages::load(values, pair, dim, column + c * Vec::kLanes, a[c], b[c]);
#pragma GCC unroll 8
    for (int q = 0; q < kQueries; q++) {
      const float* w = weights + q * kBlockTokens + 2 * pair;
      const Vec x = Vec::all(w[0]), y = Vec::all(w[1]);
#pragma GCC unroll 4
      for (int c = 0; c < kRegisters; c++) total[q][c] = fma(b[c], y, fma(a[c], x, total[q][c]));
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; q++)
#pragma GCC unroll 4
    for (int c = 0; c < kRegisters; c++) total[q][c].store(mixed + q * dim + column + c * Vec::kLanes);
}

template <typename Pages, int kQueries>
void mix_queries(const Attend& job, const std::byte* values, const float* weights, float* mixed) {
  constexpr int64_t kWide = 2 * Vec::kLanes;
  int64_t column = 0;
  for (; column + kWide <= job.dim; column += kWide) {
    mix_page<Pages, kQueries, 2>(values, weights, job.dim, column, mixed);
  }
  for (; column < job.dim; column += Vec::kLanes) {
    mix_page<Pages, kQueries, 1>(values, weights, job.dim, column, mixed);
  }
}

template <typename Pages>
void mix_pages(const Attend& job, const std::byte* const* pages, int64_t count) {
  const int64_t queries = job.num_queries();
  for (int64_t p = 0; p < count; p++) {
    const float* weights = job.scores + p * kPageTokens;
    int64_t q = 0;
    for (; q + 4 <= queries; q += 4) {
      mix_queries<Pages, 4>(job, pages[p], weights + q * kBlockTokens, job.part.mixed + q * job.dim);
    }
    for (; q < queries; q++) {
      mix_queries<Pages, 1>(job, pages[p], weights + q * kBlockTokens, job.part.mixed + q * job.dim);
    }
  }
}

// ---- a block of pages ----

// Return a copy of a page's values with zeros in slots from `used` on, which were never written and may be NaN.
template <typename Pages>
const std::byte* without_unused(const std::byte* values, int64_t dim, int64_t used, float* scratch) {
  constexpr int64_t kTogether = Pages::kBytes == 2 ? 2 : 1;
  const int64_t bytes = kPageTokens * dim * Pages::kBytes;
  auto* copy = reinterpret_cast<std::byte*>(scratch);
  __builtin_memcpy(copy, values, static_cast<size_t>(bytes));
  for (int64_t token = used; token < kPageTokens; token++) {
    for (int64_t d = 0; d < dim; d++) {
      const int64_t place = (token / kTogether * dim + d) * kTogether + token % kTogether;
      __builtin_memset(copy + place * Pages::kBytes, 0, Pages::kBytes);
    }
  }
  return copy;
}

template <typename Pages>
void attend_pages(const Attend& job, int64_t first, int64_t tokens, const std::byte* const* keys) {
#ifdef __AMX_BF16__
  if (job.pairs != nullptr) return attend_tiles(job, first, tokens, keys);
#endif
  const int64_t count = (tokens + kPageTokens - 1) / kPageTokens, used = tokens % kPageTokens;
  const std::byte* values[kBlockPages];
  for (int64_t p = 0; p < count; p++) values[p] = keys[p] + kPageTokens * job.dim * Pages::kBytes;
  if (used != 0) {
    float* scratch = job.pages + 2 * kBlockPages * kPageTokens * job.dim;
    values[count - 1] = without_unused<Pages>(values[count - 1], job.dim, used, scratch);
  }
  score_pages<Pages>(job, keys, count);
  for (int64_t q = 0; q < job.num_queries(); q++) weigh(job, q, first, tokens);
  mix_pages<Pages>(job, values, count);
}

// Add positions first ... first + tokens - 1, at most a block, to the part.
void attend_block(const Attend& job, int64_t first, int64_t tokens) {
  const CoreShape& shape = *job.step.shape;
  const auto kv = static_cast<CoreKv>(shape.kv);
  const std::byte* keys[kBlockPages];
  for (int64_t p = 0; p * kPageTokens < tokens; p++) {
    const int64_t at = first + p * kPageTokens, block = job.sequence.blocks[at / shape.block_size];
    std::byte* page = job.step.kv.page(job.op.layer, block, job.head, at % shape.block_size);
    keys[p] = page;
    if (kv == CORE_KV_INT8 || kv == CORE_KV_UINT4) {
      float* scratch = job.pages + 2 * p * kPageTokens * job.dim;
      expand_page(page, kv, job.dim, scratch, scratch + kPageTokens * job.dim);
      keys[p] = reinterpret_cast<const std::byte*>(scratch);
    }
  }
  if (kv == CORE_KV_BFLOAT16) return attend_pages<PairPages>(job, first, tokens, keys);
  attend_pages<FloatPages>(job, first, tokens, keys);
}

// ---- parts ----

void clear(const Attend& job, const Partial& partial) {
  __builtin_memset(partial.mixed, 0, static_cast<size_t>(job.num_queries() * job.dim) * sizeof(float));
  for (int64_t q = 0; q < job.num_queries(); q++) {
    partial.largest[q] = kNothing;
    partial.total[q] = 0;
  }
}

// Compute one part of the context into job.part.
void attend_part(const Attend& job, int64_t part) {
  clear(job, job.part);
  const int64_t begin = part * kPartTokens, limit = begin + kPartTokens;
  const int64_t end = limit < job.context() ? limit : job.context();
  const int64_t seen = job.first_seen(0) / kBlockTokens * kBlockTokens;
  for (int64_t first = begin > seen ? begin : seen; first < end; first += kBlockTokens) {
    attend_block(job, first, end - first < kBlockTokens ? end - first : kBlockTokens);
  }
}

// whole = whole and part together, for one query.
void join(const Partial& whole, const Partial& part, int64_t q, int64_t dim) {
  const float before = whole.largest[q], now = part.largest[q] > before ? part.largest[q] : before;
  if (now == kNothing) return;
  const float keep = before == kNothing ? 0.0f : __builtin_expf(before - now);
  const float take = part.largest[q] == kNothing ? 0.0f : __builtin_expf(part.largest[q] - now);
  float *mixed = whole.mixed + q * dim, *added = part.mixed + q * dim;
  for (int64_t d = 0; d < dim; d += Vec::kLanes) {
    fma(Vec::load(added + d), Vec::all(take), Vec::load(mixed + d) * Vec::all(keep)).store(mixed + d);
  }
  whole.total[q] = whole.total[q] * keep + part.total[q] * take;
  whole.largest[q] = now;
}

// Return the sum of a query's weights, relative to that of its largest score. Infinite if a sink takes all.
float whole_sum(const Attend& job, int64_t q) {
  const float total = job.whole.total[q];
  if (job.op.sinks == nullptr) return total;
  return total + __builtin_expf(job.op.sinks[job.head * job.group + q % job.group] - job.whole.largest[q]);
}

// Write the output of every query q: row q / group, query head job.head * group + q % group.
void finish(const Attend& job) {
  const bool rotates = job.step.shape->kv == CORE_KV_UINT4;
  for (int64_t q = 0; q < job.num_queries(); q++) {
    const Vec factor = Vec::all(1.0f / whole_sum(job, q));
    const float* mixed = job.whole.mixed + q * job.dim;
    float* out = job.step.row(job.op.out, job.row + q / job.group) + (job.head * job.group + q % job.group) * job.dim;
    for (int64_t d = 0; d < job.dim; d += Vec::kLanes) (Vec::load(mixed + d) * factor).store(out + d);
    if (rotates) hadamard(out, hadamard_factor(job.dim), out, job.dim);
  }
}

void load_queries(const Attend& job) {
  for (int64_t q = 0; q < job.num_queries(); q++) {
    const int64_t head = job.head * job.group + q % job.group;
    const float* in = job.step.row(job.op.q, job.row + q / job.group) + head * job.dim;
    float* out = job.queries + q * job.dim;
    for (int64_t d = 0; d < job.dim; d += Vec::kLanes) (Vec::load(in + d) * Vec::all(job.op.scale)).store(out + d);
#ifdef __AMX_BF16__
    if (job.pairs != nullptr) fill_query(out, job.dim, job.pairs + q * pair_stride(job.dim));
#endif
  }
}
