// A register of floats of the width of the instruction set that a file is compiled for. Include only in kernel files,
// inside their anonymous namespaces: a copy compiled for one instruction set must not be linked into code for another.
#include <immintrin.h>

#include <cstdint>

#include "core_program.h"

#ifdef __AVX512F__

struct Vec {
  static constexpr int kLanes = 16;
  __m512 v;

  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec all(float x) { return {_mm512_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  // The first n lanes; the others are 0.
  static Vec load_first(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store_first(float* p, int64_t n) const { _mm512_mask_storeu_ps(p, first(n), v); }
  static __mmask16 first(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
};

inline Vec operator+(Vec a, Vec b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline Vec operator-(Vec a, Vec b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline Vec operator*(Vec a, Vec b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline Vec operator/(Vec a, Vec b) {
  return {_mm512_div_ps(a.v, b.v)};
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
inline Vec max(Vec a, Vec b) {
  return {_mm512_max_ps(a.v, b.v)};
}
inline Vec min(Vec a, Vec b) {
  return {_mm512_min_ps(a.v, b.v)};
}
inline Vec round(Vec a) {
  return {_mm512_roundscale_ps(a.v, 0)};
}
inline float sum(Vec a) {
  return _mm512_reduce_add_ps(a.v);
}
inline float largest(Vec a) {
  return _mm512_reduce_max_ps(a.v);
}
// a < b ? yes : no, lane by lane.
inline Vec where_less(Vec a, Vec b, Vec yes, Vec no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
// a * 2^n for whole n.
inline Vec scale(Vec a, Vec n) {
  return {_mm512_scalef_ps(a.v, n.v)};
}

#else

struct Vec {
  static constexpr int kLanes = 8;
  __m256 v;

  static Vec zero() { return {_mm256_setzero_ps()}; }
  static Vec all(float x) { return {_mm256_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  // The first n lanes; the others are 0.
  static Vec load_first(const float* p, int64_t n) { return {_mm256_maskload_ps(p, first(n))}; }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store_first(float* p, int64_t n) const { _mm256_maskstore_ps(p, first(n), v); }
  static __m256i first(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
};

inline Vec operator+(Vec a, Vec b) {
  return {_mm256_add_ps(a.v, b.v)};
}
inline Vec operator-(Vec a, Vec b) {
  return {_mm256_sub_ps(a.v, b.v)};
}
inline Vec operator*(Vec a, Vec b) {
  return {_mm256_mul_ps(a.v, b.v)};
}
inline Vec operator/(Vec a, Vec b) {
  return {_mm256_div_ps(a.v, b.v)};
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.v, b.v, c.v)};
}
inline Vec max(Vec a, Vec b) {
  return {_mm256_max_ps(a.v, b.v)};
}
inline Vec min(Vec a, Vec b) {
  return {_mm256_min_ps(a.v, b.v)};
}
inline Vec round(Vec a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

inline float sum(Vec a) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

inline float largest(Vec a) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

// a < b ? yes : no, lane by lane.
inline Vec where_less(Vec a, Vec b, Vec yes, Vec no) {
  return {_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}

// a * 2^n for whole n of -126 ... 127.
inline Vec scale(Vec a, Vec n) {
  const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127)), 23);
  return {_mm256_mul_ps(a.v, _mm256_castsi256_ps(bits))};
}

#endif

// e^x with a relative error of about 1e-6; x is clamped to -87 ... 88.
inline Vec exp(Vec x) {
  const Vec log2e = Vec::all(0x1.715476p+0f), log2e_rest = Vec::all(0x1.4ae0bep-26f);
  x = min(max(x, Vec::all(-87.0f)), Vec::all(88.0f));
  const Vec n = round(x * log2e);
  const Vec f = fma(x, log2e_rest, fma(x, log2e, Vec::zero() - n));
  Vec p = Vec::all(1.5403530e-4f);
  p = fma(p, f, Vec::all(1.3333558e-3f));
  p = fma(p, f, Vec::all(9.6181291e-3f));
  p = fma(p, f, Vec::all(5.5504109e-2f));
  p = fma(p, f, Vec::all(2.4022651e-1f));
  p = fma(p, f, Vec::all(6.9314718e-1f));
  return scale(fma(p, f, Vec::all(1.0f)), n);
}
