// Dequantization of a piece of a tile's inputs to float32, [inputs][64], or to bfloat16 pairs.

// A tile of a matrix.
struct Tile {
  const CoreWeight* weight;
  const WeightLayout* layout;
  const std::byte* data;
  int64_t ahead;  // prefetch distance in bytes
};

// Prefetch the cache line at a distance from a place.
[[gnu::always_inline]] inline void fetch_line(const std::byte* place, int64_t ahead) {
  _mm_prefetch(reinterpret_cast<const char*>(place) + ahead, _MM_HINT_T0);
}

// Prefetch 256 bytes.
[[gnu::always_inline]] inline void fetch_ahead(const std::byte* place, int64_t ahead) {
#pragma GCC unroll 4
  for (int64_t at = 0; at < 256; at += 64) fetch_line(place + at, ahead);
}

// The output of a tile: rows of 64 outputs.
struct Places {
  float* row;
  int64_t stride;
  int64_t rows;
  const float* bias;             // of these outputs; null: none
  int64_t outputs;               // less than 64 in the last tile of a matrix
  int32_t gate = 0;              // CoreGate: products are multiplied by activation(gates); 0: they are not
  const float* gates = nullptr;  // [rows][64]

  // Return the output for rows from `first` on.
  Places from(int64_t first, int64_t count) const {
    return {
        row + first * stride, stride, count, bias, outputs, gate, gate == 0 ? nullptr : gates + first * kTileOutputs};
  }
};

constexpr int64_t kColumns = kTileOutputs / Vec::kLanes;  // registers of a row of a tile

// Write a row of products, with bias and gate.
[[gnu::always_inline]] inline void put_row(const Places& places, int64_t row, const Vec (&products)[kColumns]) {
  float* out = places.row + row * places.stride;
#pragma GCC unroll 8
  for (int64_t c = 0; c < kColumns; c++) {
    const int64_t left = places.outputs - c * Vec::kLanes, lanes = left < Vec::kLanes ? left : Vec::kLanes;
    if (lanes <= 0) break;
    Vec x = products[c];
    if (places.bias != nullptr) x = x + Vec::load_first(places.bias + c * Vec::kLanes, lanes);
    x.store_first(out + c * Vec::kLanes, lanes);
  }
  if (places.gate != 0) gate_row(places.gate, places.gates + row * kTileOutputs, out, out, places.outputs);
}

// Write sums [rows][64].
void put_sums(const Places& places, const float* sums) {
  for (int64_t row = 0; row < places.rows; row++, sums += kTileOutputs) {
    Vec products[kColumns];
#pragma GCC unroll 8
    for (int64_t c = 0; c < kColumns; c++) products[c] = Vec::load(sums + c * Vec::kLanes);
    put_row(places, row, products);
  }
}

Vec widen(const uint16_t* half) {
#ifdef __AVX512F__
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(half)))};
#else
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(half)))};
#endif
}

// Scales or offsets of one register of outputs.
Vec scales_at(const CoreWeight& weight, const std::byte* scales, int64_t column) {
  if (weight.scales == CORE_FLOAT32) return Vec::load(reinterpret_cast<const float*>(scales) + column * Vec::kLanes);
  return widen(reinterpret_cast<const uint16_t*>(scales) + column * Vec::kLanes);
}

// weight = code's value * scale + offset, for one register of outputs in one group.
struct Affine {
  Vec scale, offset;

  Affine() = default;
  Affine(const CoreWeight& weight, const WeightLayout& layout, const std::byte* group, int64_t column)
      : Affine(weight, layout, group, column, static_cast<float>(weight.zero)) {}
  Affine(const CoreWeight& weight, const WeightLayout& layout, const std::byte* group, int64_t column, float zero) {
    const std::byte* scales = group + layout.code_bytes;
    scale = scales_at(weight, scales, column);
    offset = Vec::zero() - scale * Vec::all(zero);
    if (weight.offsets != 0) offset = offset + scales_at(weight, scales + layout.scale_bytes, column);
  }
};

#ifdef __AVX512F__
using Codes = __m512i;
Codes load_codes(const std::byte* p) {
  return _mm512_loadu_si512(p);
}
Codes masked(Codes codes, int mask) {
  return _mm512_and_si512(codes, _mm512_set1_epi32(mask));
}
template <int kShift>
Codes shifted(Codes codes) {
  return kShift == 0 ? codes : _mm512_srli_epi32(codes, kShift);
}
Vec number(Codes code) {
  return {_mm512_cvtepi32_ps(code)};
}

// Looks at the four lowest bits of each lane alone.
struct Codebook {
  __m512 values;
  explicit Codebook(const CoreWeight& weight) : values(_mm512_loadu_ps(weight.values)) {
    if (weight.codebook == 0) values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  Vec operator()(Codes code) const { return {_mm512_permutexvar_ps(code, values)}; }
};
#else
using Codes = __m256i;
Codes load_codes(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
Codes masked(Codes codes, int mask) {
  return _mm256_and_si256(codes, _mm256_set1_epi32(mask));
}
template <int kShift>
Codes shifted(Codes codes) {
  return kShift == 0 ? codes : _mm256_srli_epi32(codes, kShift);
}
Vec number(Codes code) {
  return {_mm256_cvtepi32_ps(code)};
}

// Looks at the four lowest bits of each lane alone.
struct Codebook {
  __m256 low, high;
  explicit Codebook(const CoreWeight& weight)
      : low(_mm256_loadu_ps(weight.values)), high(_mm256_loadu_ps(weight.values + 8)) {}
  Vec operator()(Codes code) const {
    const __m256 in_high = _mm256_castsi256_ps(_mm256_slli_epi32(code, 28));  // the sign of each lane: bit 3
    return {_mm256_blendv_ps(_mm256_permutevar8x32_ps(low, code), _mm256_permutevar8x32_ps(high, code), in_high)};
  }
};
#endif

template <int kMask>
struct Linear {
  explicit Linear(const CoreWeight&) {}
  Vec operator()(Codes code) const { return number(masked(code, kMask)); }
};

// Four inputs of one register of outputs.
template <int kHalf, typename Value>
void widen_four(Codes codes, const Value& value, const Affine& affine, Vec (&out)[4]) {
  out[0] = fma(value(shifted<0 + kHalf>(codes)), affine.scale, affine.offset);
  out[1] = fma(value(shifted<8 + kHalf>(codes)), affine.scale, affine.offset);
  out[2] = fma(value(shifted<16 + kHalf>(codes)), affine.scale, affine.offset);
  out[3] = fma(value(shifted<24 + kHalf>(codes)), affine.scale, affine.offset);
}

// Inputs first ... last - 1 (whole groups, or multiples of 64 inside one) of integer codes; put(input, column, four)
// takes four inputs of one register of outputs at a time.
template <bool kInt4, typename Value, typename Put>
void widen_codes(const Tile& tile, int64_t first, int64_t last, Put put) {
  constexpr int64_t kInputs = kInt4 ? 8 : 4;
  const WeightLayout& layout = *tile.layout;
  const Value value(*tile.weight);
  for (int64_t at = first; at < last;) {
    const int64_t group = at / layout.group, begin = group * layout.group;
    const int64_t end = begin + layout.group < last ? begin + layout.group : last;
    const std::byte* data = tile.data + group * layout.group_bytes;
    for (int64_t column = 0; column < kColumns; column++) {
      const Affine affine(*tile.weight, layout, data, column);
      for (int64_t k = at; k < end; k += kInputs) {
        const Codes codes = load_codes(data + ((k - begin) / kInputs * kTileOutputs + column * Vec::kLanes) * 4);
        Vec four[4];
        widen_four<0>(codes, value, affine, four);
        put(k - first, column, four);
        if constexpr (kInt4) {
          widen_four<4>(codes, value, affine, four);
          put(k - first + 4, column, four);
        }
      }
    }
    at = end;
  }
}

template <typename Put>
void widen_integers(const Tile& tile, int64_t first, int64_t last, Put put) {
  if (tile.weight->format == CORE_FORMAT_INT8) return widen_codes<false, Linear<0xff>>(tile, first, last, put);
  widen_codes<true, Codebook>(tile, first, last, put);
}

// ---- as float32 ----

void widen_halves(const Tile& tile, int64_t first, int64_t last, float* out) {
  const auto* in = reinterpret_cast<const uint16_t*>(tile.data) + first * kTileOutputs;
  for (int64_t i = 0; i < (last - first) * kTileOutputs; i += Vec::kLanes) widen(in + i).store(out + i);
}

// Two inputs of one register of outputs, the first in the low halves.
[[gnu::always_inline]] inline void widen_pair(Codes both, Vec (&out)[2]) {
  const Codes high = masked(both, static_cast<int>(0xffff0000u));
#ifdef __AVX512F__
  out[0] = {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))};
  out[1] = {_mm512_castsi512_ps(high)};
#else
  out[0] = {_mm256_castsi256_ps(_mm256_slli_epi32(both, 16))};
  out[1] = {_mm256_castsi256_ps(high)};
#endif
}

void widen_pairs(const Tile& tile, int64_t first, int64_t last, float* out) {
  const std::byte* in = tile.data + first * kTileOutputs * 2;
  for (int64_t k = 0; k < last - first; k += 2) {
    for (int64_t column = 0; column < kColumns; column++) {
      Vec two[2];
      widen_pair(load_codes(in + (k / 2 * kTileOutputs + column * Vec::kLanes) * 4), two);
      float* place = out + k * kTileOutputs + column * Vec::kLanes;
      two[0].store(place);
      two[1].store(place + kTileOutputs);
    }
  }
}

// Return inputs first ... last - 1 as [inputs][64]: in place, or converted in the scratch buffer.
const float* widened(const Tile& tile, int64_t first, int64_t last, float* scratch) {
  switch (tile.weight->format) {
    case CORE_FORMAT_FLOAT32:
      return reinterpret_cast<const float*>(tile.data) + first * kTileOutputs;
    case CORE_FORMAT_FLOAT16:
      widen_halves(tile, first, last, scratch);
      return scratch;
    case CORE_FORMAT_BFLOAT16:
      widen_pairs(tile, first, last, scratch);
      return scratch;
  }
  widen_integers(tile, first, last, [scratch](int64_t k, int64_t column, const Vec(&four)[4]) {
    float* place = scratch + k * kTileOutputs + column * Vec::kLanes;
    for (int i = 0; i < 4; i++) four[i].store(place + i * kTileOutputs);
  });
  return scratch;
}
