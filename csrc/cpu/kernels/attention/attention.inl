// Causal attention over pages. A job is a tile of queries of one KV head, over all of its context or over one part of
// it.
//
// The context is always split into parts of kPartTokens from position 0 on, each part into blocks of kBlockTokens, and
// the parts are joined in order: results depend neither on the other rows of a batch nor on the number of threads.

// ---- a block of pages ----

constexpr int64_t kQueriesAtOnce = 24;  // whose scores of a block fit a first-level cache
constexpr int64_t kManyQueries = 12;    // from which on products take longer than reading pages

// The pages of the next block: many queries fetch them into the second-level cache on the way, each a share.
struct NextPages {
  const std::byte* pages[kBlockPages];
  int64_t count = 0;
  int64_t lines = 0;  // of a page

  void fetch(int64_t share, int64_t shares) const {
    const int64_t all = count * lines;
    for (int64_t line = share * all / shares; line < (share + 1) * all / shares; line++) {
      _mm_prefetch(reinterpret_cast<const char*>(pages[line / lines] + line % lines * 64), _MM_HINT_T1);
    }
  }
};

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
void attend_pages(const Attend& job, int64_t first, int64_t tokens, const std::byte* const* keys,
                  const NextPages& next) {
  const bool many = job.num_queries() >= kManyQueries;
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
      if (many) next.fetch(q + r, job.num_queries());
      Pages::weigh(job, job.scores + r * kBlockTokens, q + r, first, tokens);
    }
    divide_queries<Pages::kMostQueries>(queries, [&]<int kQueries>(int64_t r) {
      const float* weights = job.scores + r * kBlockTokens;
      float* mixed = job.part.mixed + (q + r) * dim;
      mix_queries<Pages, kQueries>(values, count, many || Vec::kLanes == 16, weights, dim, mixed);
    });
  }
}

// ---- formats ----

#ifdef __AVX512BF16__

void attend_bfloat16(const Attend& job, int64_t first, int64_t tokens, std::byte* const* pages,
                     const NextPages& next) {
#ifdef __AMX_BF16__
  if (in_tiles(*job.step.shape)) return attend_tiles(job, first, tokens, pages);
#endif
  attend_pages<PairPages>(job, first, tokens, pages, next);
}

#else

void attend_bfloat16(const Attend& job, int64_t first, int64_t tokens, std::byte* const* pages,
                     const NextPages& next) {
  if (job.num_queries() < kManyQueries) return attend_pages<PairPages>(job, first, tokens, pages, next);
  const std::byte* expanded[kBlockPages];
  const int64_t page = kPageTokens * job.dim;
  for (int64_t p = 0; p * kPageTokens < tokens; p++) {
    float* scratch = job.pages + 2 * p * page;
    expand_pairs(pages[p], job.dim / 2, kPageTokens, scratch);
    expand_pairs(pages[p] + page * 2, kPageTokens / 2, job.dim, scratch + page);
    expanded[p] = reinterpret_cast<const std::byte*>(scratch);
  }
  attend_pages<FloatPages>(job, first, tokens, expanded, next);
}

#endif

// Codes are multiplied as floats: what pairs round would move other layers' codes.
void attend_codes(const Attend& job, int64_t first, int64_t tokens, std::byte* const* pages,
                  const NextPages& next) {
  const std::byte* expanded[kBlockPages];
  const int64_t page = kPageTokens * job.dim;
  for (int64_t p = 0; p * kPageTokens < tokens; p++) {
    float* scratch = job.pages + 2 * p * page;
    expand_page(pages[p], static_cast<CoreKv>(job.step.shape->kv), job.dim, scratch, scratch + page);
    expanded[p] = reinterpret_cast<const std::byte*>(scratch);
  }
  attend_pages<FloatPages>(job, first, tokens, expanded, next);
}

// Write the pages of `tokens` positions from `first` on, at most a block; return how many.
template <typename Page>
int64_t find_pages(const Attend& job, int64_t first, int64_t tokens, Page* pages) {
  const int64_t block_size = job.step.shape->block_size, count = (tokens + kPageTokens - 1) / kPageTokens;
  for (int64_t p = 0; p < count; p++) {
    const int64_t at = first + p * kPageTokens, block = job.sequence.blocks[at / block_size];
    pages[p] = job.step.kv.page(job.op.layer, block, job.head, at % block_size);
  }
  return count;
}

// Add positions first ... end - 1, at most a block, to the part.
void attend_block(const Attend& job, int64_t first, int64_t end) {
  std::byte* pages[kBlockPages];
  find_pages(job, first, end - first, pages);
  NextPages next;
  if (const int64_t left = job.context() - end; left > 0 && job.num_queries() >= kManyQueries) {
    next.count = find_pages(job, end, left < kBlockTokens ? left : kBlockTokens, next.pages);
    next.lines = job.step.kv.page_bytes / 64;
  }
  const int32_t kv = job.step.shape->kv;
  if (kv == CORE_KV_FLOAT32) return attend_pages<FloatPages>(job, first, end - first, pages, next);
  if (kv == CORE_KV_BFLOAT16) return attend_bfloat16(job, first, end - first, pages, next);
  attend_codes(job, first, end - first, pages, next);
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
    attend_block(job, first, end - first < kBlockTokens ? end : first + kBlockTokens);
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
