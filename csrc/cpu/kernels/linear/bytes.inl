// Products of quantized weights with activations in planes of int8, by vpdpbusd. Only for files compiled with AVX512
// and VNNI.

// Four inputs of every row of codes times four registers of outputs.
template <int kRows>
[[gnu::always_inline]] inline void add_four(__m512i (&total)[4][kRows], const __m512i (&codes)[4], const int8_t* x,
                                            int64_t stride) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
    int32_t four;
    __builtin_memcpy(&four, x + r * stride, sizeof(four));
    const __m512i all = _mm512_set1_epi32(four);
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) total[c][r] = _mm512_dpbusd_epi32(total[c][r], codes[c], all);
  }
}

// The codes of a group times kRows rows of codes.
template <int kRows, bool kInt4>
[[gnu::always_inline]] inline void add_group(__m512i (&total)[4][kRows], const std::byte* w, const int8_t* x,
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

// sums [kRows][64] = products with rows from `row` on, before the scales of the rows.
template <int kRows, int kPlanes, bool kInt4>
void byte_rows(const Tile& tile, const Rows& rows, int64_t row, float* sums) {
  constexpr int kAll = kRows * kPlanes;
  const WeightLayout& layout = *tile.layout;
  const int8_t* x = rows.planes.codes + row * kPlanes * rows.padded;
  Vec sum[kRows][4];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; r++) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = Vec::zero();
  for (int64_t group = 0; group < layout.groups; group++) {
    const std::byte* data = tile.data + group * layout.group_bytes;
    __m512i total[4][kAll];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++)
#pragma GCC unroll 4
      for (int r = 0; r < kAll; r++) total[c][r] = _mm512_setzero_si512();
    add_group<kAll, kInt4>(total, data, x + group * layout.group, rows.padded, layout.group, tile.ahead);
    Vec x_sum[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; r++) {
      x_sum[r] = Vec::all(group_sum(rows.planes, rows.padded, row + r, group * layout.group, layout.group));
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
      const Affine affine(*tile.weight, layout, data, c);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; r++) {
        sum[r][c] = add_product<kPlanes>(&total[c][r * kPlanes], 1, affine, x_sum[r], sum[r][c]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) sum[r][c].store(sums + r * kTileOutputs + c * 16);
}

template <int kRows, int kPlanes>
void byte_rows_of(const Tile& tile, const Rows& rows, int64_t row, float* sums) {
  if (tile.weight->format == CORE_FORMAT_INT4) return byte_rows<kRows, kPlanes, true>(tile, rows, row, sums);
  byte_rows<kRows, kPlanes, false>(tile, rows, row, sums);
}

// sums [rows][64] = the tile's products with rows first ... last - 1.
void byte_tile(const Tile& tile, const Rows& rows, int64_t first, int64_t last, float* sums) {
  const bool two = rows.planes.count == 2;
  for (int64_t row = first; row < last;) {
    float* out = sums + (row - first) * kTileOutputs;
    if (last - row >= 2) {
      two ? byte_rows_of<2, 2>(tile, rows, row, out) : byte_rows_of<2, 1>(tile, rows, row, out);
      row += 2;
    } else {
      two ? byte_rows_of<1, 2>(tile, rows, row, out) : byte_rows_of<1, 1>(tile, rows, row, out);
      row += 1;
    }
  }
  scale_rows(rows.planes, first, last, sums);
}
