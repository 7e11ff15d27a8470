// Conversion of the activations of a product to the forms that its implementations read.

// Rows as integers: x = scale * word, or in planes of int8, scale * (256 * plane 0 + plane 1) or scale * plane 0.
struct Planes {
  int16_t* words;  // [rows][padded], of four inputs in the order 0, 2, 1, 3; null: planes
  int8_t* codes;   // [rows][count][padded]
  uint32_t* sums;  // [rows][padded / 16 + 1], of all numbers before, modulo 2^32; of words, or of the last plane
  float* totals;   // [rows], of all numbers, in the same scale
  float* scales;   // [rows]; NaN where a row is not finite
  int64_t count;   // number of planes, 1 for words; 0: not needed
  float steps;     // the integer that stands for the largest magnitude of a row
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

int64_t sums_of_row(int64_t padded) {
  return padded / kSumInputs + 1;
}

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

void fill_pairs(const Rows& rows, int64_t row, const float* x) {
  BFloat16* out = rows.pairs + row * rows.stride;
  for (int64_t k = 0; k < rows.padded; k += 16) {
    const int64_t lanes = rows.width - k < 16 ? (rows.width > k ? rows.width - k : 0) : 16;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + k), bfloat16_of(Vec::load_first(x + k, lanes).v));
  }
}

#endif

// Return the largest magnitude of a row, and 0, or NaN if a number is not finite.
struct Range {
  float largest;
  float zero;
};

Range range_of(const float* x, int64_t n) {
  Vec most = Vec::zero(), zeros = Vec::zero();
  for (int64_t k = 0; k < n; k += Vec::kLanes) {
    const Vec v = Vec::load_first(x + k, n - k < Vec::kLanes ? n - k : Vec::kLanes);
    most = max(most, max(v, Vec::zero() - v));
    zeros = fma(v, Vec::zero(), zeros);
  }
  return {largest(most), sum(zeros)};
}

// The first 8 of `left` numbers times a factor, rounded; zeros beyond.
__m256i rounded(const float* x, int64_t left, __m256 factor) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i first = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(left)), lane);
  return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_maskload_ps(x, first), factor));
}

int32_t sum_of_16(__m256i words) {
  const __m256i pairs = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}

void put_words(__m256i words, int16_t* out) {
  const __m256i even_first = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), even_first);
}

void put_bytes(__m256i words, int8_t* out) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(words, words), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(packed));
}

// Write words as one or two planes.
void put_planes(__m256i words, int64_t count, int64_t padded, int8_t* out) {
  if (count == 1) return put_bytes(words, out);
  const __m256i top = _mm256_srai_epi16(_mm256_add_epi16(words, _mm256_set1_epi16(128)), 8);
  put_bytes(top, out);
  put_bytes(_mm256_sub_epi16(words, _mm256_slli_epi16(top, 8)), out + padded);
}

void fill_planes(const Rows& rows, int64_t row, const float* x) {
  const Planes& planes = rows.planes;
  const Range range = range_of(x, rows.width);
  planes.scales[row] = range.largest / planes.steps + range.zero;
  const __m256 factor = _mm256_set1_ps(range.largest > 0 ? planes.steps / range.largest : 0.0f);
  uint32_t* sums = planes.sums + row * sums_of_row(rows.padded);
  float total = 0;
  sums[0] = 0;
  for (int64_t k = 0; k < rows.padded; k += kSumInputs) {
    const int64_t left = rows.width - k;
    const __m256i both = _mm256_packs_epi32(rounded(x + k, left, factor), rounded(x + k + 8, left - 8, factor));
    const __m256i words = _mm256_permute4x64_epi64(both, 0xd8);
    const int32_t sum = sum_of_16(words);
    sums[k / kSumInputs + 1] = sums[k / kSumInputs] + static_cast<uint32_t>(sum);
    total += static_cast<float>(sum);
    if (planes.words != nullptr) {
      put_words(words, planes.words + row * rows.padded + k);
    } else {
      put_planes(words, planes.count, rows.padded, planes.codes + row * planes.count * rows.padded + k);
    }
  }
  planes.totals[row] = total;
}

// Convert x, [width], to row `row`.
void fill_forms(const Rows& rows, int64_t row, const float* x) {
#ifdef __AVX512F__
  if (rows.pairs != nullptr) fill_pairs(rows, row, x);
#endif
  if (rows.planes.count != 0) fill_planes(rows, row, x);
}
