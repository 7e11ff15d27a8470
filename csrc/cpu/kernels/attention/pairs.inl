// Queries and weights in bfloat16. Only for files compiled with AVX512_BF16.

constexpr int64_t kPairTokens = 32;  // weights are computed for so many tokens at a time

// A row of queries in bfloat16.
void round_row(const float* query, int64_t dim, BFloat16* out) {
  for (int64_t d = 0; d < dim; d += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + d), bfloat16_of(_mm512_loadu_ps(query + d)));
  }
}

// 2^x to about three parts in 10^6; 0 where x is below -126.
Vec power_of_two(Vec x) {
  const Vec n = round(x), f = x - n;
  Vec p = Vec::all(9.5826825e-3f);
  p = fma(p, f, Vec::all(5.5905912e-2f));
  p = fma(p, f, Vec::all(2.4024098e-1f));
  p = fma(p, f, Vec::all(6.9312423e-1f));
  p = fma(p, f, Vec::all(1.0f));
  const __mmask16 kept = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(-126.0f), _CMP_GE_OQ);
  return {_mm512_maskz_scalef_ps(kept, p.v, n.v)};
}

// Overwrite the scores of a row with e^(score - top) in bfloat16; return the sum of the rounded weights.
float put_pair_weights(float* scores, int64_t covered, float top) {
  const Vec log2e = Vec::all(0x1.715476p+0f), highest = Vec::all(-0x1.715476p+0f * top);
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  Vec even = Vec::zero(), odd = Vec::zero();
  for (int64_t t = 0; t < covered; t += kPairTokens) {
    const Vec first = power_of_two(fma(Vec::load(scores + t), log2e, highest));
    const Vec second = power_of_two(fma(Vec::load(scores + t + 16), log2e, highest));
    const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second.v, first.v));
    _mm512_storeu_si512(reinterpret_cast<BFloat16*>(scores) + t, both);
    even = even + Vec{_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))};
    odd = odd + Vec{_mm512_castsi512_ps(_mm512_and_si512(both, high))};
  }
  return sum(even + odd);
}

// As weigh_floats(), in bfloat16.
void weigh_pairs(const Attend& job, float* scores, int64_t q, int64_t first, int64_t tokens) {
  const int64_t covered = up_to(tokens, kPairTokens);
  const float before = job.part.largest[q], now = settle_scores(job, scores, q, first, tokens, covered);
  if (now == kNothing) {
    __builtin_memset(scores, 0, static_cast<size_t>(covered) * sizeof(BFloat16));
    return;
  }
  take_in(job, q, before, now, put_pair_weights(scores, covered, now));
}
