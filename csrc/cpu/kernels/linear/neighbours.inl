// Instructions that add products of two or of four neighbours: codes, and activations as integers.

// Codes as they lie in a register, of kInputs inputs of each output. `bytes` are four of those inputs, `words` two: the
// even ones, then the odd ones, of each four.

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
Codes bytes_of_table(Codes table, Codes places) {
  return _mm512_shuffle_epi8(table, places);
}
Codes table_of(const int8_t* bytes) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
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
Codes bytes_of_table(Codes table, Codes places) {
  return _mm256_shuffle_epi8(table, places);
}
Codes table_of(const int8_t* bytes) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
}
#endif

// True if the values of a codebook are whole numbers of -255 ... 255 that differ by 255 at most: they are multiplied as
// integers.
bool has_whole_values(const CoreWeight& weight) {
  Vec lowest = Vec::all(255.0f), highest = Vec::all(-255.0f), rests = Vec::zero();
  for (int64_t i = 0; i < 16; i += Vec::kLanes) {
    const Vec values = Vec::load(weight.values + i), rest = values - round(values);
    lowest = min(lowest, values);
    highest = max(highest, values);
    rests = fma(rest, rest, rests);
  }
  const float least = -largest(Vec::zero() - lowest), most = largest(highest);
  return sum(rests) == 0 && least >= -255.0f && most <= 255.0f && most - least <= 255.0f;
}

struct WholeCodes {
  static constexpr int64_t kInputs = 4;
  float zero;

  explicit WholeCodes(const CoreWeight& weight) : zero(static_cast<float>(weight.zero)) {}
  template <int kPart>
  Codes bytes(Codes codes) const {
    return codes;
  }
  template <int kPart>
  Codes words(Codes codes) const {
    return kPart == 0 ? masked(codes, 0x00ff00ff) : shifted_words<8>(codes);
  }
};

struct HalfCodes {
  static constexpr int64_t kInputs = 8;
  float zero;

  explicit HalfCodes(const CoreWeight& weight) : zero(static_cast<float>(weight.zero)) {}
  template <int kPart>
  Codes bytes(Codes codes) const {
    return masked(shifted_words<kPart * 4>(codes), 0x0f0f0f0f);
  }
  template <int kPart>
  Codes words(Codes codes) const {
    constexpr int kShift = kPart % 2 * 8 + kPart / 2 * 4;
    return kShift == 12 ? shifted_words<12>(codes) : masked(shifted_words<kShift>(codes), 0x000f000f);
  }
};

// Codes of 4 bits with a codebook: its values, less the lowest.
struct TableCodes {
  static constexpr int64_t kInputs = 8;
  float zero;
  Codes table;

  explicit TableCodes(const CoreWeight& weight) {
    float lowest = weight.values[0];
    for (float value : weight.values) lowest = value < lowest ? value : lowest;
    int8_t values[16];
    for (int i = 0; i < 16; i++) values[i] = static_cast<int8_t>(static_cast<int32_t>(weight.values[i] - lowest));
    table = table_of(values);
    zero = static_cast<float>(weight.zero) - lowest;
  }
  template <int kPart>
  Codes bytes(Codes codes) const {
    return bytes_of_table(table, masked(shifted_words<kPart * 4>(codes), 0x0f0f0f0f));
  }
  template <int kPart>
  Codes words(Codes codes) const {
    const Codes four = bytes<kPart / 2>(codes);
    return kPart % 2 == 0 ? masked(four, 0x00ff00ff) : shifted_words<8>(four);
  }
};

#ifdef __AVX512VNNI__
constexpr bool kApart = false;  // whether products of some rows are functions of their own
#else
constexpr bool kApart = true;
#endif

// Activations of 16 bits, two neighbours at a time.
struct WordProducts {
  using Number = int16_t;
  static constexpr int64_t kInputs = 2;
  static constexpr bool kNarrow = false;

  static const Number* numbers(const Planes& planes) { return planes.words; }

  template <int kPart, typename Unpack>
  static Codes part(const Unpack& unpack, Codes codes) {
    return unpack.template words<kPart>(codes);
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
#if defined(__AVX512VNNI__)
  static constexpr bool kTakesInt8 = true, kNarrow = false;
  static Codes add(Codes sum, Codes codes, Codes x) { return _mm512_dpbusd_epi32(sum, codes, x); }
#elif defined(__AVX512F__)
  static constexpr bool kTakesInt8 = false, kNarrow = true;
  static Codes multiply(Codes codes, Codes x) { return _mm512_maddubs_epi16(codes, x); }
  static Codes add(Codes sum, Codes codes, Codes x) { return _mm512_add_epi16(sum, multiply(codes, x)); }
  static Codes widened(Codes sum) { return _mm512_madd_epi16(sum, _mm512_set1_epi16(1)); }
#elif defined(__AVXVNNI__)
  static constexpr bool kTakesInt8 = true, kNarrow = false;
  static Codes add(Codes sum, Codes codes, Codes x) { return _mm256_dpbusd_avx_epi32(sum, codes, x); }
#else
  static constexpr bool kTakesInt8 = false, kNarrow = true;
  static Codes multiply(Codes codes, Codes x) { return _mm256_maddubs_epi16(codes, x); }
  static Codes add(Codes sum, Codes codes, Codes x) { return _mm256_add_epi16(sum, multiply(codes, x)); }
  static Codes widened(Codes sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
#endif

  static const Number* numbers(const Planes& planes) { return planes.codes; }

  template <int kPart, typename Unpack>
  static Codes part(const Unpack& unpack, Codes codes) {
    return unpack.template bytes<kPart>(codes);
  }
};
