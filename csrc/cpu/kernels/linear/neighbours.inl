// Instructions that add products of two or of four neighbours: codes, and activations as integers.

#ifdef __AVX512F__
Codes in_all(int32_t inputs) {
  return _mm512_set1_epi32(inputs);
}
[[gnu::always_inline]] inline Codes plus(Codes a, Codes b) {
  return _mm512_add_epi32(a, b);
}
template <int kShift>
Codes shifted_words(Codes codes) {
  return kShift == 0 ? codes : _mm512_srli_epi16(codes, kShift);
}
#else
Codes in_all(int32_t inputs) {
  return _mm256_set1_epi32(inputs);
}
[[gnu::always_inline]] inline Codes plus(Codes a, Codes b) {
  return _mm256_add_epi32(a, b);
}
template <int kShift>
Codes shifted_words(Codes codes) {
  return kShift == 0 ? codes : _mm256_srli_epi16(codes, kShift);
}
#endif

// Activations of 16 bits, two neighbours at a time.
struct WordProducts {
  using Number = int16_t;
  static constexpr int64_t kInputs = 2;
  static constexpr bool kNarrow = false;
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  static constexpr bool kApart = false;
#else
  static constexpr bool kApart = true;
#endif

  static const Number* numbers(const Planes& planes) { return planes.words; }

  // Of codes of four or eight inputs of each output: the even two, then the odd two, of each four.
  template <bool kInt4, int kPart>
  static Codes part(Codes codes) {
    if constexpr (!kInt4) return kPart == 0 ? masked(codes, 0x00ff00ff) : shifted_words<8>(codes);
    constexpr int kShift = kPart % 2 * 8 + kPart / 2 * 4;
    return kShift == 12 ? shifted_words<12>(codes) : masked(shifted_words<kShift>(codes), 0x000f000f);
  }

  static Codes add(Codes sum, Codes codes, Codes x) {
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(sum, codes, x);
#elif defined(__AVX512F__)
    return _mm512_add_epi32(sum, _mm512_madd_epi16(codes, x));
#elif defined(__AVXVNNI__)
    return _mm256_dpwssd_avx_epi32(sum, codes, x);
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(codes, x));
#endif
  }
};

// Activations of 8 bits, four neighbours at a time; without VNNI twice two, with sums in 16 bits (kNarrow), in which
// products of codes of 8 bits would overflow.
struct ByteProducts {
  using Number = int8_t;
  static constexpr int64_t kInputs = 4;
  static constexpr bool kApart = false;
#if defined(__AVX512VNNI__)
  static constexpr bool kTakesInt8 = true, kNarrow = false;
  static Codes add(Codes sum, Codes codes, Codes x) { return _mm512_dpbusd_epi32(sum, codes, x); }
#elif defined(__AVX512F__)
  static constexpr bool kTakesInt8 = false, kNarrow = true;
  static Codes add(Codes sum, Codes codes, Codes x) { return _mm512_add_epi16(sum, _mm512_maddubs_epi16(codes, x)); }
  static Codes widened(Codes sum) { return _mm512_madd_epi16(sum, _mm512_set1_epi16(1)); }
#elif defined(__AVXVNNI__)
  static constexpr bool kTakesInt8 = true, kNarrow = false;
  static Codes add(Codes sum, Codes codes, Codes x) { return _mm256_dpbusd_avx_epi32(sum, codes, x); }
#else
  static constexpr bool kTakesInt8 = false, kNarrow = true;
  static Codes add(Codes sum, Codes codes, Codes x) { return _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x)); }
  static Codes widened(Codes sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
#endif

  static const Number* numbers(const Planes& planes) { return planes.codes; }

  template <bool kInt4, int kPart>
  static Codes part(Codes codes) {
    if constexpr (!kInt4) return codes;
    return masked(shifted_words<kPart * 4>(codes), 0x0f0f0f0f);
  }
};
