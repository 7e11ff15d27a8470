// Loads of keys and values: two terms of a sum at a time, in registers of floats.

// Pages that hold floats, [inputs][columns].
struct FloatPages {
  static constexpr int64_t kBytes = 4;
  [[gnu::always_inline]] static void load(const std::byte* page, int64_t pair, int64_t columns, int64_t column, Vec& a,
                                          Vec& b) {
    const float* place = reinterpret_cast<const float*>(page) + 2 * pair * columns + column;
    a = Vec::load(place);
    b = Vec::load(place + columns);
  }
};

// Pages that hold bfloat16, [inputs / 2][columns][2].
struct PairPages {
  static constexpr int64_t kBytes = 2;
  [[gnu::always_inline]] static void load(const std::byte* page, int64_t pair, int64_t columns, int64_t column, Vec& a,
                                          Vec& b) {
    const Codes both = load_codes(page + (pair * columns + column) * 4);
#ifdef __AVX512F__
    a = {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))};
    b = {_mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
#else
    a = {_mm256_castsi256_ps(_mm256_slli_epi32(both, 16))};
    b = {_mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
#endif
  }
};

// ---- quantized pages, as pages of floats ----

#ifdef __AVX512F__
Vec bytes_as_floats(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
void halves_as_floats(const uint8_t* p, Vec& low, Vec& high) {
  const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  low = {_mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15)))};
  high = {_mm512_cvtepi32_ps(_mm512_srli_epi32(both, 4))};
}
#else
Vec bytes_as_floats(const uint8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
void halves_as_floats(const uint8_t* p, Vec& low, Vec& high) {
  const __m256i both = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  low = {_mm256_cvtepi32_ps(_mm256_and_si256(both, _mm256_set1_epi32(15)))};
  high = {_mm256_cvtepi32_ps(_mm256_srli_epi32(both, 4))};
}
#endif

// keys [head_dim][16], values [16][head_dim]
void expand_page(std::byte* page, CoreKv kv, int64_t dim, float* keys, float* values) {
  const CodePage codes(page, kv, dim);
  for (int64_t lane = 0; lane < kPageTokens; lane += Vec::kLanes) {
    const Vec step = Vec::load(codes.key_steps + lane), low = Vec::load(codes.key_lows + lane);
    for (int64_t d = 0; kv == CORE_KV_INT8 && d < dim; d++) {
      fma(bytes_as_floats(codes.keys + d * kPageTokens + lane), step, low).store(keys + d * kPageTokens + lane);
    }
    for (int64_t d = 0; kv == CORE_KV_UINT4 && d < dim; d += 2) {
      Vec even, odd;
      halves_as_floats(codes.keys + d / 2 * kPageTokens + lane, even, odd);
      fma(even, step, low).store(keys + d * kPageTokens + lane);
      fma(odd, step, low).store(keys + (d + 1) * kPageTokens + lane);
    }
  }
  for (int64_t token = 0; token < kPageTokens; token++) {
    const Vec step = Vec::all(codes.value_steps[token]), low = Vec::all(codes.value_lows[token]);
    float* out = values + token * dim;
    for (int64_t d = 0; kv == CORE_KV_INT8 && d < dim; d += Vec::kLanes) {
      fma(bytes_as_floats(codes.values + token * dim + d), step, low).store(out + d);
    }
    for (int64_t d = 0; kv == CORE_KV_UINT4 && d < dim / 2; d += Vec::kLanes) {
      const int64_t lanes = dim / 2 - d < Vec::kLanes ? dim / 2 - d : Vec::kLanes;
      Vec first, second;
      halves_as_floats(codes.values + token * (dim / 2) + d, first, second);
      fma(first, step, low).store_first(out + d, lanes);
      fma(second, step, low).store_first(out + dim / 2 + d, lanes);
    }
  }
}
