// Philox and Gumbel noise for a register of token ids at once: common/philox.h has the same, one by one.

#ifdef __AVX512F__
struct Words {
  __m512i v;
  static Words all(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
  static Words from(uint32_t first) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return {_mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(first)))};
  }
};
Words operator^(Words a, Words b) {
  return {_mm512_xor_si512(a.v, b.v)};
}

// Of every second word, from the first on: the product with a factor, low word first.
Words product(Words x, uint32_t factor) {
  return {_mm512_mul_epu32(x.v, _mm512_set1_epi64(factor))};
}
// Move the odd words to even positions; and interleave the even words of one register with those of `odd`.
Words following(Words x) {
  return {_mm512_srli_epi64(x.v, 32)};
}
Words interleaved(Words even, Words odd) {
  return {_mm512_mask_blend_epi32(0xaaaa, even.v, _mm512_slli_epi64(odd.v, 32))};
}

// (x + 0.5) / 2^32, to a float's precision.
Vec fraction(Words x) {
  return fma(Vec{_mm512_cvtepu32_ps(x.v)}, Vec::all(0x1p-32f), Vec::all(0x1p-33f));
}
Words complement(Words x) {
  return {_mm512_xor_si512(x.v, _mm512_set1_epi32(-1))};
}
// The exponent and the mantissa, 1 to 2, of normal positive numbers.
Vec exponent(Vec x) {
  return {_mm512_getexp_ps(x.v)};
}
Vec mantissa(Vec x) {
  return {_mm512_getmant_ps(x.v, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src)};
}
uint32_t not_less(Vec a, Vec b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ);
}
// The lanes whose bits, where mask has some, are those.
uint32_t equal_bits(Vec x, uint32_t mask, uint32_t bits) {
  const __m512i left = _mm512_and_si512(_mm512_castps_si512(x.v), Words::all(mask).v);
  return _mm512_cmpeq_epi32_mask(left, Words::all(bits).v);
}
#else
struct Words {
  __m256i v;
  static Words all(uint32_t x) { return {_mm256_set1_epi32(static_cast<int>(x))}; }
  static Words from(uint32_t first) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return {_mm256_add_epi32(lanes, _mm256_set1_epi32(static_cast<int>(first)))};
  }
};
Words operator^(Words a, Words b) {
  return {_mm256_xor_si256(a.v, b.v)};
}

Words product(Words x, uint32_t factor) {
  return {_mm256_mul_epu32(x.v, _mm256_set1_epi64x(factor))};
}
Words following(Words x) {
  return {_mm256_srli_epi64(x.v, 32)};
}
Words interleaved(Words even, Words odd) {
  return {_mm256_blend_epi32(even.v, _mm256_slli_epi64(odd.v, 32), 0xaa)};
}

Vec fraction(Words x) {
  // AVX2 converts signed words only: the high and the low half each by itself.
  const __m256 high = _mm256_cvtepi32_ps(_mm256_srli_epi32(x.v, 16));
  const __m256 low = _mm256_cvtepi32_ps(_mm256_and_si256(x.v, _mm256_set1_epi32(0xffff)));
  const Vec word = fma(Vec{high}, Vec::all(65536.0f), Vec{low});
  return fma(word, Vec::all(0x1p-32f), Vec::all(0x1p-33f));
}
Words complement(Words x) {
  return {_mm256_xor_si256(x.v, _mm256_set1_epi32(-1))};
}
Vec exponent(Vec x) {
  const __m256i bits = _mm256_srli_epi32(_mm256_castps_si256(x.v), 23);
  return {_mm256_cvtepi32_ps(_mm256_sub_epi32(bits, _mm256_set1_epi32(127)))};
}
Vec mantissa(Vec x) {
  const __m256i bits = _mm256_and_si256(_mm256_castps_si256(x.v), _mm256_set1_epi32(0x007fffff));
  return {_mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_set1_epi32(0x3f800000)))};
}
uint32_t not_less(Vec a, Vec b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)));
}
uint32_t equal_bits(Vec x, uint32_t mask, uint32_t bits) {
  const __m256i left = _mm256_and_si256(_mm256_castps_si256(x.v), Words::all(mask).v);
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(left, Words::all(bits).v))));
}
#endif

// The first random word of counters (position, id, index, 0), for every second id. Odd words are not cleared: products
// ignore them.
[[gnu::always_inline]] inline Words random_halves(const CoreSampling& sampling, Words ids) {
  uint32_t key0 = static_cast<uint32_t>(sampling.seed), key1 = static_cast<uint32_t>(sampling.seed >> 32);
  // The first round is the same for all ids.
  const uint64_t first0 = uint64_t{static_cast<uint32_t>(sampling.position)} * kPhiloxMultiply0;
  const uint64_t first1 = uint64_t{static_cast<uint32_t>(sampling.index)} * kPhiloxMultiply1;
  Words c0 = ids ^ Words::all(static_cast<uint32_t>(first1 >> 32) ^ key0),
        c1 = Words::all(static_cast<uint32_t>(first1));
  Words c2 = Words::all(static_cast<uint32_t>(first0 >> 32) ^ key1), c3 = Words::all(static_cast<uint32_t>(first0));
#pragma GCC unroll 9
  for (int round = 1; round < kPhiloxRounds; round++) {
    key0 += kPhiloxKey0;
    key1 += kPhiloxKey1;
    const Words product0 = product(c0, kPhiloxMultiply0), product1 = product(c2, kPhiloxMultiply1);
    c0 = following(product1) ^ c1 ^ Words::all(key0);
    c2 = following(product0) ^ c3 ^ Words::all(key1);
    c1 = product1;
    c3 = product0;
  }
  return c0;
}

Words random_words(const CoreSampling& sampling, Words ids) {
  return interleaved(random_halves(sampling, ids), random_halves(sampling, following(ids)));
}

// The natural logarithm of normal positive numbers, to about 2e-7 of its value or of 1.
Vec log(Vec x) {
  Vec e = exponent(x), m = mantissa(x);
  const Vec edge = Vec::all(1.41421356f);
  e = where_less(m, edge, e, e + Vec::all(1.0f));
  m = where_less(m, edge, m, m * Vec::all(0.5f));
  const Vec f = m - Vec::all(1.0f), s = f / (f + Vec::all(2.0f)), z = s * s;
  Vec p = Vec::all(0.22222222f);
  p = fma(p, z, Vec::all(0.28571429f));
  p = fma(p, z, Vec::all(0.4f));
  p = fma(p, z, Vec::all(0.66666667f));
  return fma(e, Vec::all(0.69314718f), fma(s * z, p, s + s));
}

// -log(-log(1 - v)) for v = (word + 0.5) / 2^32.
Vec gumbel_noise(Words words) {
  const Vec v = fraction(words), rest = fraction(complement(words)), one = Vec::all(1.0f);
  // Close to 1 the rounding of 1 - v is undone (Kahan): log(u) * v / (1 - u); where u = 1, the logarithm is v.
  const Vec u = one - v, gap = one - u;
  const Vec near_one = where_less(gap, Vec::all(1e-30f), v, (Vec::zero() - log(u)) * v / max(gap, Vec::all(1e-30f)));
  const Vec exponential = where_less(v, Vec::all(0.5f), near_one, Vec::zero() - log(rest));
  return Vec::zero() - log(exponential);
}
