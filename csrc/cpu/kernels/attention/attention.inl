// Causal attention over pages. A job is a tile of queries of one KV head, over all of its context or over one part of
// it.
//
// The context is always split into parts of kPartTokens from position 0 on, each part into blocks of kBlockTokens, and
// the parts are joined in order: results depend neither on the other rows of a batch nor on the number of threads.

// ---- a block of pages ----

constexpr int64_t kQueriesAtOnce = 24;  // whose scores of a block fit a first-level cache

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

// Add `tokens` positions from `first` on to the part: kQueriesAtOnce queries at a time are scored, weighed and mixed.
template <typename Pages>
void attend_pages(const Attend& job, int64_t first, int64_t tokens, const std::byte* const* keys) {
  const int64_t count = (tokens + kPageTokens - 1) / kPageTokens, used = tokens % kPageTokens, dim = job.dim;
  const std::byte* values[kBlockPages];
  for (int64_t p = 0; p < count; p++) values[p] = keys[p] + kPageTokens * dim * Pages::kBytes;
  if (used != 0) {
    float* scratch = job.pages + 2 * kBlockPages * kPageTokens * dim;
    values[count - 1] = without_unused<Pages>(values[count - 1], dim, used, scratch);
  }
  for (int64_t q = 0; q < job.num_queries(); q += kQueriesAtOnce) {
    const int64_t left = job.num_queries() - q, queries = left < kQueriesAtOnce ? left : kQueriesAtOnce;
    divide_queries<Pages::kMostQueries>(queries, [&]<int kQueries>(int64_t r) {
      float* scores = job.scores + r * kBlockTokens;
      score_queries<Pages, kQueries>(keys, count, Pages::queries(job) + (q + r) * dim, dim, scores);
    });
    for (int64_t r = 0; r < queries; r++) {
      Pages::weigh(job, job.scores + r * kBlockTokens, q + r, first, tokens);
    }
    divide_queries<Pages::kMostQueries>(queries, [&]<int kQueries>(int64_t r) {
      const float* weights = job.scores + r * kBlockTokens;
      mix_queries<Pages, kQueries>(values, count, weights, dim, job.part.mixed + (q + r) * dim);
    });
  }
}

#ifdef __AVX512BF16__

void attend_bfloat16(const Attend& job, int64_t first, int64_t tokens, const std::byte* const* keys) {
#ifdef __AMX_BF16__
  if (in_tiles(*job.step.shape)) return attend_tiles(job, first, tokens, keys);
#endif
  attend_pages<PairPages>(job, first, tokens, keys);
}

#else

constexpr int64_t kExpandedFrom = 12;  // queries from which on pages are expanded once, not for some queries at a time

void attend_bfloat16(const Attend& job, int64_t first, int64_t tokens, const std::byte* const* keys) {
  if (job.num_queries() < kExpandedFrom) return attend_pages<PairPages>(job, first, tokens, keys);
  const std::byte* expanded[kBlockPages];
  const int64_t page = kPageTokens * job.dim;
  for (int64_t p = 0; p * kPageTokens < tokens; p++) {
    float* scratch = job.pages + 2 * p * page;
    expand_pairs(keys[p], job.dim / 2, kPageTokens, scratch);
    expand_pairs(keys[p] + page * 2, kPageTokens / 2, job.dim, scratch + page);
    expanded[p] = reinterpret_cast<const std::byte*>(scratch);
  }
  attend_pages<FloatPages>(job, first, tokens, expanded);
}

#endif

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
  if (kv == CORE_KV_BFLOAT16) return attend_bfloat16(job, first, tokens, keys);
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

// Write query q in bfloat16, if products are of pairs.
void round_query([[maybe_unused]] const Attend& job, [[maybe_unused]] int64_t q) {
#ifdef __AVX512BF16__
  const float* query = job.queries + q * job.dim;
#ifdef __AMX_BF16__
  if (in_tiles(*job.step.shape)) return fill_query(query, job.dim, job.pairs + q * pair_stride(job.dim));
#endif
  if (job.step.shape->kv == CORE_KV_BFLOAT16) round_row(query, job.dim, job.pairs + q * job.dim);
#endif
}

void load_queries(const Attend& job) {
  for (int64_t q = 0; q < job.num_queries(); q++) {
    const int64_t head = job.head * job.group + q % job.group;
    const float* in = job.step.row(job.op.q, job.row + q / job.group) + head * job.dim;
    float* out = job.queries + q * job.dim;
    for (int64_t d = 0; d < job.dim; d += Vec::kLanes) (Vec::load(in + d) * Vec::all(job.op.scale)).store(out + d);
    round_query(job, q);
  }
}
