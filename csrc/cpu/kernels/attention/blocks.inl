// Attention to a block of pages of numbers.

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

#ifdef __AVX512BF16__

void attend_bfloat16(const Attend& job, int64_t first, int64_t tokens, std::byte* const* pages, const NextPages& next) {
#ifdef __AMX_BF16__
  if (in_tiles(*job.step.shape)) return attend_tiles(job, first, tokens, pages);
#endif
  attend_pages<PairPages>(job, first, tokens, pages, next);
}

#else

void attend_bfloat16(const Attend& job, int64_t first, int64_t tokens, std::byte* const* pages, const NextPages& next) {
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
