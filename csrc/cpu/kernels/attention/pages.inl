// How keys and values lie in pages, and products with them. A term is an input of a sum, or two that lie together, for
// a register of columns. queries(): rows of what the job's queries are in these products; weigh() turns scores into
// weights of the same numbers.

// Pages that hold floats, [inputs][columns].
struct FloatPages {
  using Number = float;  // of queries and weights
  using Term = Vec;
  static constexpr int64_t kBytes = 4;
  static constexpr int64_t kInputs = 1;   // of a term
  static constexpr int kMostQueries = 6;  // at a time: registers hold the sums of no more

  [[gnu::always_inline]] static Term load(const std::byte* page, int64_t term, int64_t columns, int64_t column) {
    return Vec::load(reinterpret_cast<const float*>(page) + term * columns + column);
  }
  [[gnu::always_inline]] static Term in_all(const float* numbers) { return Vec::all(*numbers); }
  [[gnu::always_inline]] static Vec add(Vec total, Term term, Term all) { return fma(term, all, total); }
  static const Number* queries(const Attend& job) { return job.queries; }
  static void weigh(const Attend& job, float* scores, int64_t q, int64_t first, int64_t tokens) {
    weigh_floats(job, scores, q, first, tokens);
  }
};

#ifdef __AVX512BF16__

// Pages that hold bfloat16, [inputs / 2][columns][2]; queries and weights are rounded to it.
struct PairPages {
  using Number = BFloat16;
  using Term = __m512bh;
  static constexpr int64_t kBytes = 2;
  static constexpr int64_t kInputs = 2;
  static constexpr int kMostQueries = 6;

  [[gnu::always_inline]] static Term load(const std::byte* page, int64_t term, int64_t columns, int64_t column) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(page + (term * columns + column) * 4));
  }
  [[gnu::always_inline]] static Term in_all(const BFloat16* numbers) {
    int32_t pair;
    __builtin_memcpy(&pair, numbers, sizeof(pair));
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
  }
  [[gnu::always_inline]] static Vec add(Vec total, Term term, Term all) {
    return {_mm512_dpbf16_ps(total.v, term, all)};
  }
  static const Number* queries(const Attend& job) { return job.pairs; }
  static void weigh(const Attend& job, float* scores, int64_t q, int64_t first, int64_t tokens) {
    weigh_pairs(job, scores, q, first, tokens);
  }
};

#else

// Pages that hold bfloat16, [inputs / 2][columns][2].
struct PairPages {
  struct Term {
    Vec even, odd;
  };
  using Number = float;
  static constexpr int64_t kBytes = 2;
  static constexpr int64_t kInputs = 2;
  static constexpr int kMostQueries = 4;

  [[gnu::always_inline]] static Term load(const std::byte* page, int64_t term, int64_t columns, int64_t column) {
    const Codes both = load_codes(page + (term * columns + column) * 4);
#ifdef __AVX512F__
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))},
            {_mm512_castsi512_ps(masked(both, static_cast<int>(0xffff0000u)))}};
#else
    return {{_mm256_castsi256_ps(_mm256_slli_epi32(both, 16))},
            {_mm256_castsi256_ps(masked(both, static_cast<int>(0xffff0000u)))}};
#endif
  }
  [[gnu::always_inline]] static Term in_all(const float* numbers) {
    return {Vec::all(numbers[0]), Vec::all(numbers[1])};
  }
  [[gnu::always_inline]] static Vec add(Vec total, const Term& term, const Term& all) {
    return fma(term.odd, all.odd, fma(term.even, all.even, total));
  }
  static const Number* queries(const Attend& job) { return job.queries; }
  static void weigh(const Attend& job, float* scores, int64_t q, int64_t first, int64_t tokens) {
    weigh_floats(job, scores, q, first, tokens);
  }
};

// Make `terms` terms of `columns` columns floats [2 * terms][columns].
void expand_pairs(const std::byte* pairs, int64_t terms, int64_t columns, float* out) {
  for (int64_t term = 0; term < terms; term++) {
    for (int64_t column = 0; column < columns; column += Vec::kLanes) {
      const PairPages::Term both = PairPages::load(pairs, term, columns, column);
      both.even.store(out + 2 * term * columns + column);
      both.odd.store(out + (2 * term + 1) * columns + column);
    }
  }
}

#endif

// ---- pages of codes: an entry is low + step * code of its token ----

#ifdef __AVX512F__
[[gnu::always_inline]] inline Vec bytes_as_floats(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
[[gnu::always_inline]] inline void halves_as_floats(const uint8_t* p, Vec& low, Vec& high) {
  const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  low = {_mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15)))};
  high = {_mm512_cvtepi32_ps(_mm512_srli_epi32(both, 4))};
}
#else
[[gnu::always_inline]] inline Vec bytes_as_floats(const uint8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
[[gnu::always_inline]] inline void halves_as_floats(const uint8_t* p, Vec& low, Vec& high) {
  const __m256i both = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  low = {_mm256_cvtepi32_ps(_mm256_and_si256(both, _mm256_set1_epi32(15)))};
  high = {_mm256_cvtepi32_ps(_mm256_srli_epi32(both, 4))};
}
#endif

// Codes of 8 bits as floats.
struct BytePages : FloatPages {
  [[gnu::always_inline]] static Term load(const std::byte* page, int64_t term, int64_t columns, int64_t column) {
    return bytes_as_floats(reinterpret_cast<const uint8_t*>(page) + term * columns + column);
  }
};

// Keys in codes of 4 bits as floats: entries 2i and 2i + 1 in a byte.
struct HalfKeyPages {
  struct Term {
    Vec even, odd;
  };
  using Number = float;
  static constexpr int64_t kInputs = 2;
  static constexpr int kMostQueries = 4;

  [[gnu::always_inline]] static Term load(const std::byte* page, int64_t term, int64_t columns, int64_t column) {
    Term both;
    halves_as_floats(reinterpret_cast<const uint8_t*>(page) + term * columns + column, both.even, both.odd);
    return both;
  }
  [[gnu::always_inline]] static Term in_all(const float* numbers) {
    return {Vec::all(numbers[0]), Vec::all(numbers[1])};
  }
  [[gnu::always_inline]] static Vec add(Vec total, const Term& term, const Term& all) {
    return fma(term.odd, all.odd, fma(term.even, all.even, total));
  }
};

// Values in codes of 4 bits as floats: entries i and i + head_dim / 2 in a byte, head_dim a multiple of 32.
struct HalfValuePages : FloatPages {
  [[gnu::always_inline]] static Term load(const std::byte* page, int64_t term, int64_t columns, int64_t column) {
    const int64_t half = columns / 2;
    const auto* row = reinterpret_cast<const uint8_t*>(page) + term * half;
    Vec low, high;
    halves_as_floats(row + (column < half ? column : column - half), low, high);
    return column < half ? low : high;
  }
};

// Write the codes of a page as floats: keys [head_dim][16], values [16][head_dim].
void expand_codes(const CodePage& codes, CoreKv kv, int64_t dim, float* keys, float* values) {
  const int64_t entries = kPageTokens * dim;
  if (kv == CORE_KV_INT8) {
    for (int64_t i = 0; i < entries; i += Vec::kLanes) bytes_as_floats(codes.keys + i).store(keys + i);
    for (int64_t i = 0; i < entries; i += Vec::kLanes) bytes_as_floats(codes.values + i).store(values + i);
    return;
  }
  for (int64_t d = 0; d < dim; d += 2) {
    for (int64_t lane = 0; lane < kPageTokens; lane += Vec::kLanes) {
      Vec even, odd;
      halves_as_floats(codes.keys + d / 2 * kPageTokens + lane, even, odd);
      even.store(keys + d * kPageTokens + lane);
      odd.store(keys + (d + 1) * kPageTokens + lane);
    }
  }
  for (int64_t token = 0; token < kPageTokens; token++) {
    float* out = values + token * dim;
    for (int64_t d = 0; d < dim / 2; d += Vec::kLanes) {
      const int64_t lanes = dim / 2 - d < Vec::kLanes ? dim / 2 - d : Vec::kLanes;
      Vec first, second;
      halves_as_floats(codes.values + token * (dim / 2) + d, first, second);
      first.store_first(out + d, lanes);
      second.store_first(out + dim / 2 + d, lanes);
    }
  }
}
