// Products of queries with keys, and of weights with values.

constexpr int kPageRegisters = static_cast<int>(kPageTokens) / Vec::kLanes;
constexpr int kRegisters = Vec::kLanes == 16 ? 4 : 2;  // of columns at a time
constexpr int64_t kScorePages = kRegisters / kPageRegisters;

// total[q][c] += terms of registers of columns times numbers of rows q, `stride` apart.
template <typename Pages, int kQueries, int kColumns>
[[gnu::always_inline]] inline void add_terms(const typename Pages::Term (&terms)[kColumns],
                                             const typename Pages::Number* numbers, int64_t stride,
                                             Vec (&total)[kQueries][kColumns]) {
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; q++) {
    const typename Pages::Term all = Pages::in_all(numbers + q * stride);
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; c++) total[q][c] = Pages::add(total[q][c], terms[c], all);
  }
}

// scores[q][token] of kPages pages for kQueries queries.
template <typename Pages, int kQueries, int kPages>
void score_pages(const std::byte* const* pages, const typename Pages::Number* queries, int64_t dim, float* scores) {
  constexpr int kColumns = kPages * kPageRegisters;
  Vec total[kQueries][kColumns];
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; q++)
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; c++) total[q][c] = Vec::zero();
  for (int64_t term = 0; term < dim / Pages::kInputs; term++) {
    typename Pages::Term terms[kColumns];
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; c++) {
      terms[c] = Pages::load(pages[c / kPageRegisters], term, kPageTokens, c % kPageRegisters * Vec::kLanes);
    }
    add_terms<Pages, kQueries, kColumns>(terms, queries + term * Pages::kInputs, dim, total);
  }
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; q++)
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; c++) total[q][c].store(scores + q * kBlockTokens + c * Vec::kLanes);
}

// mixed[q][...] += numbers[q][token] * values[token][...] over pages, for kColumns registers of entries from `column`
// on. A row of numbers begins where one of scores does.
template <typename Pages, int kQueries, int kColumns>
void mix_pages(const std::byte* const* pages, int64_t count, const typename Pages::Number* numbers, int64_t dim,
               int64_t column, float* mixed) {
  constexpr int64_t kStride = kBlockTokens * 4 / static_cast<int64_t>(sizeof(typename Pages::Number));
  Vec total[kQueries][kColumns];
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; q++)
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; c++) total[q][c] = Vec::load(mixed + q * dim + column + c * Vec::kLanes);
  for (int64_t p = 0; p < count; p++, numbers += kPageTokens) {
    for (int64_t term = 0; term < kPageTokens / Pages::kInputs; term++) {
      typename Pages::Term terms[kColumns];
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; c++) terms[c] = Pages::load(pages[p], term, dim, column + c * Vec::kLanes);
      add_terms<Pages, kQueries, kColumns>(terms, numbers + term * Pages::kInputs, kStride, total);
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; q++)
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; c++) total[q][c].store(mixed + q * dim + column + c * Vec::kLanes);
}

// Scores of kQueries queries with all pages of a block.
template <typename Pages, int kQueries>
void score_queries(const std::byte* const* pages, int64_t count, const typename Pages::Number* queries, int64_t dim,
                   float* scores) {
  int64_t p = 0;
  for (; p + kScorePages <= count; p += kScorePages) {
    score_pages<Pages, kQueries, kScorePages>(pages + p, queries, dim, scores + p * kPageTokens);
  }
  for (; p < count; p++) score_pages<Pages, kQueries, 1>(pages + p, queries, dim, scores + p * kPageTokens);
}

// Add the values of all pages of a block for kQueries queries: some entries of all pages at a time, or where
// reading takes longest, all entries of one page at a time. Both come to the same bits.
template <typename Pages, int kQueries>
void mix_queries(const std::byte* const* pages, int64_t count, bool by_entries, const float* weights, int64_t dim,
                 float* mixed) {
  using Number = typename Pages::Number;
  constexpr int64_t kOnce = kRegisters * Vec::kLanes;
  const int64_t together = by_entries ? count : 1;
  for (int64_t p = 0; p < count; p += together) {
    const auto* numbers = reinterpret_cast<const Number*>(weights) + p * kPageTokens;
    int64_t column = 0;
    for (; column + kOnce <= dim; column += kOnce) {
      mix_pages<Pages, kQueries, kRegisters>(pages + p, together, numbers, dim, column, mixed);
    }
    for (; column < dim; column += kPageTokens) {
      mix_pages<Pages, kQueries, kPageRegisters>(pages + p, together, numbers, dim, column, mixed);
    }
  }
}

// Call take with a number of queries as a constant, at most kMost.
template <int kMost, typename Take>
[[gnu::always_inline]] inline void with_queries(int64_t queries, const Take& take) {
  if constexpr (kMost > 1) {
    if (queries < kMost) return with_queries<kMost - 1>(queries, take);
  }
  take.template operator()<kMost>();
}

// Call take(q, first, n) for all queries, n = at most kMost of them from `first` on, as many at a time as at another.
template <int kMost, typename Take>
[[gnu::always_inline]] inline void divide_queries(int64_t queries, const Take& take) {
  for (int64_t first = 0; first < queries;) {
    const int64_t left = queries - first, some = left < 2 * kMost ? (left + 1) / 2 : kMost;
    const int64_t count = left <= kMost ? left : some;
    with_queries<kMost>(count, [&]<int kQueries>() { take.template operator()<kQueries>(first); });
    first += count;
  }
}
