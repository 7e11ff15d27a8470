// Products of codes with activations in planes of int8, by vpdpbusd. Only for files compiled with AVX512 and VNNI.

void fetch_ahead(const std::byte* place, int64_t ahead) {
  const char* next = reinterpret_cast<const char*>(place) + ahead;
  _mm_prefetch(next, _MM_HINT_T0);
  _mm_prefetch(next + 64, _MM_HINT_T0);
  _mm_prefetch(next + 128, _MM_HINT_T0);
  _mm_prefetch(next + 192, _MM_HINT_T0);
}

// Four inputs of every row times four registers of outputs.
template <int kRows>
[[gnu::always_inline]] inline void add_four(__m512i (&total)[kRows][4], const __m512i (&codes)[4], const int8_t* x,
                                            int64_t stride) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
    int32_t four;
    __builtin_memcpy(&four, x + r * stride, sizeof(four));
    const __m512i all = _mm512_set1_epi32(four);
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) total[r][c] = _mm512_dpbusd_epi32(total[r][c], codes[c], all);
  }
}

// The codes of a group times kRows rows of codes.
template <int kRows, bool kInt4>
[[gnu::always_inline]] inline void add_group(__m512i (&total)[kRows][4], const std::byte* w, const int8_t* x,
                                             int64_t stride, int64_t inputs, int64_t ahead) {
  const __m512i low_halves = _mm512_set1_epi8(0x0f);
  for (int64_t k = 0; k < inputs; k += kInt4 ? 8 : 4, w += 256) {
    __m512i codes[4], part[4];
    fetch_ahead(w, ahead);
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) codes[c] = part[c] = _mm512_load_si512(w + c * 64);
    if constexpr (kInt4) {
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++) part[c] = _mm512_and_si512(codes[c], low_halves);
    }
    add_four<kRows>(total, part, x + k, stride);
    if constexpr (kInt4) {
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++) part[c] = _mm512_and_si512(_mm512_srli_epi16(codes[c], 4), low_halves);
      add_four<kRows>(total, part, x + k + 4, stride);
    }
  }
}

int32_t sum_of(const int32_t* sums, int64_t count) {
  int32_t total = 0;
  for (int64_t i = 0; i < count; i++) total += sums[i];
  return total;
}

// sums [kRows][64] = products with rows of codes, [kRows][stride], before the scales of the rows.
template <int kRows, bool kInt4>
void byte_rows(const Tile& tile, const int8_t* x, const int32_t* code_sums, int64_t stride, float* sums) {
  const CoreWeight& weight = *tile.weight;
  const WeightLayout& layout = *tile.layout;
  const int64_t parts = layout.group / kSumInputs, parts_of_row = stride / kSumInputs;
  for (int64_t group = 0; group < layout.groups; group++) {
    const std::byte* data = tile.data + group * layout.group_bytes;
    int32_t x_sums[kRows];
    __m512i total[kRows][4];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      x_sums[r] = sum_of(code_sums + r * parts_of_row + group * parts, parts);
      const __m512i zero = _mm512_set1_epi32(-weight.zero * x_sums[r]);
      total[r][0] = total[r][1] = total[r][2] = total[r][3] = zero;
    }
    add_group<kRows, kInt4>(total, data, x + group * layout.group, stride, layout.group, tile.ahead);
    const std::byte* scales = data + layout.code_bytes;
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
      const Vec scale = scales_at(weight, scales, c);
      const Vec offset = weight.offsets != 0 ? scales_at(weight, scales + layout.scale_bytes, c) : Vec::zero();
#pragma GCC unroll 8
      for (int r = 0; r < kRows; r++) {
        float* place = sums + r * kTileOutputs + c * 16;
        const Vec before = group == 0 ? Vec::zero() : Vec::load(place);
        const Vec product = fma(Vec{_mm512_cvtepi32_ps(total[r][c])}, scale, before);
        fma(offset, Vec::all(static_cast<float>(x_sums[r])), product).store(place);
      }
    }
  }
}

template <bool kInt4>
void byte_rows_of(int64_t count, const Tile& tile, const int8_t* x, const int32_t* code_sums, int64_t stride,
                  float* sums) {
  switch (count) {
    case 1:
      return byte_rows<1, kInt4>(tile, x, code_sums, stride, sums);
    case 2:
      return byte_rows<2, kInt4>(tile, x, code_sums, stride, sums);
    case 3:
      return byte_rows<3, kInt4>(tile, x, code_sums, stride, sums);
    default:
      return byte_rows<4, kInt4>(tile, x, code_sums, stride, sums);
  }
}

// Joins the planes of each row, and applies its scale: sums [rows][64] from planes [rows * count][64], in place.
void join_planes(const Planes& planes, int64_t first, int64_t last, float* sums) {
  for (int64_t row = first; row < last; row++) {
    const float* high = sums + (row - first) * planes.count * kTileOutputs;
    float* out = sums + (row - first) * kTileOutputs;
    const Vec scale = Vec::all(planes.scales[row]);
    for (int64_t c = 0; c < kTileOutputs; c += Vec::kLanes) {
      Vec x = Vec::load(high + c);
      if (planes.count == 2) x = fma(x, Vec::all(256.0f), Vec::load(high + kTileOutputs + c));
      (x * scale).store(out + c);
    }
  }
}

// sums [rows][64] = the tile's products with rows first ... last - 1; sums has room for every plane.
void byte_tile(const Tile& tile, const Rows& rows, int64_t first, int64_t last, float* sums) {
  const Planes& planes = rows.planes;
  const int64_t count = (last - first) * planes.count;
  for (int64_t plane = 0; plane < count; plane += 4) {
    const int64_t at = first * planes.count + plane, now = count - plane < 4 ? count - plane : 4;
    const int8_t* x = planes.codes + at * rows.padded;
    const int32_t* code_sums = planes.sums + at * (rows.padded / kSumInputs);
    float* out = sums + plane * kTileOutputs;
    if (tile.weight->format == CORE_FORMAT_INT4) {
      byte_rows_of<true>(now, tile, x, code_sums, rows.padded, out);
    } else {
      byte_rows_of<false>(now, tile, x, code_sums, rows.padded, out);
    }
  }
  join_planes(planes, first, last, sums);
}
