// Conversion of the activations of a product to the forms that its implementations read.

// Rows in one or two planes of int8: x = scale * (256 * plane 0 + plane 1), or scale * plane 0.
struct Planes {
  int8_t* codes;  // [rows][count][padded]
  float* sums;    // [rows][padded / 16], of 16 numbers each, in the scale of the last plane
  float* totals;  // [rows], of all numbers, in the same scale
  float* scales;  // [rows]; NaN where a row is not finite
  int64_t count;  // number of planes; 0: not needed
};

// The activations of some rows.
struct Rows {
  const float* floats;  // [rows][width]
  int64_t width;
  int64_t padded;   // width with zero padding, for the forms below
  int64_t stride;   // of rows of pairs
  BFloat16* pairs;  // [rows][stride]; null: not needed
  Planes planes;
};

constexpr int64_t kSumInputs = 16;

#ifdef __AVX512F__

// Round to nearest, ties to even, 16 numbers.
__m256i bfloat16_of(__m512 x) {
#ifdef __AVX512BF16__
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
#else
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#endif
}

void fill_pairs(const Rows& rows, int64_t row) {
  const float* x = rows.floats + row * rows.width;
  BFloat16* out = rows.pairs + row * rows.stride;
  for (int64_t k = 0; k < rows.padded; k += 16) {
    const int64_t lanes = rows.width - k < 16 ? (rows.width > k ? rows.width - k : 0) : 16;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + k), bfloat16_of(Vec::load_first(x + k, lanes).v));
  }
}

// The sums of four codes each of 64.
__m512i sums_of_four(const int8_t* codes) {
  return _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_loadu_si512(codes));
}

// The sums of 16 numbers each of 64, at sums[0 ... 3].
void sum_codes(const int8_t* codes, int64_t count, int64_t padded, float* sums) {
  __m512i fours = sums_of_four(codes);
  if (count == 2) fours = _mm512_add_epi32(_mm512_slli_epi32(fours, 8), sums_of_four(codes + padded));
  const __m512i eights = _mm512_add_epi32(fours, _mm512_shuffle_epi32(fours, _MM_PERM_CDAB));
  const __m512i sixteens = _mm512_add_epi32(eights, _mm512_shuffle_epi32(eights, _MM_PERM_BADC));
  _mm512_mask_compressstoreu_ps(sums, 0x1111, _mm512_cvtepi32_ps(sixteens));
}

// Return the largest magnitude of a row, and 0, or NaN if a number is not finite.
struct Range {
  float largest;
  float zero;
};

Range range_of(const float* x, int64_t n) {
  Vec most = Vec::zero(), zeros = Vec::zero();
  for (int64_t k = 0; k < n; k += 16) {
    const Vec v = Vec::load_first(x + k, n - k < 16 ? n - k : 16);
    most = max(most, Vec{_mm512_abs_ps(v.v)});
    zeros = fma(v, Vec::zero(), zeros);
  }
  return {largest(most), sum(zeros)};
}

void fill_planes(const Rows& rows, int64_t row) {
  const Planes& planes = rows.planes;
  const float* x = rows.floats + row * rows.width;
  const Range range = range_of(x, rows.width);
  const float steps = planes.count == 2 ? 127.0f * 256.0f : 127.0f;
  planes.scales[row] = range.largest / steps + range.zero;
  const Vec factor = Vec::all(range.largest > 0 ? steps / range.largest : 0.0f);
  int8_t* high = planes.codes + row * planes.count * rows.padded;
  float* sums = planes.sums + row * (rows.padded / kSumInputs);
  for (int64_t k = 0; k < rows.padded; k += 16) {
    const int64_t lanes = rows.width - k < 16 ? (rows.width > k ? rows.width - k : 0) : 16;
    const __m512i code = _mm512_cvtps_epi32((Vec::load_first(x + k, lanes) * factor).v);
    __m512i top = code;
    if (planes.count == 2) {
      top = _mm512_srai_epi32(_mm512_add_epi32(code, _mm512_set1_epi32(128)), 8);
      const __m512i rest = _mm512_sub_epi32(code, _mm512_slli_epi32(top, 8));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(high + rows.padded + k), _mm512_cvtepi32_epi8(rest));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high + k), _mm512_cvtepi32_epi8(top));
  }
  for (int64_t k = 0; k < rows.padded; k += 64) sum_codes(high + k, planes.count, rows.padded, sums + k / kSumInputs);
  float total = 0;
  for (int64_t i = 0; i < rows.padded / kSumInputs; i++) total += sums[i];
  planes.totals[row] = total;
}

void fill_forms(const Rows& rows, int64_t row) {
  if (rows.pairs != nullptr) fill_pairs(rows, row);
  if (rows.planes.count != 0) fill_planes(rows, row);
}

#else

// AVX2 computes with the floats themselves.
void fill_forms(const Rows&, int64_t) {}

#endif
