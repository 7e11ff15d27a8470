// Products of quantized weights with activations in a plane of int16, by vpmaddwd. For sets without VNNI.

constexpr int64_t kWordPiece = 128;  // inputs: the sums of more of the largest products overflow 32 bits

#ifdef __AVX512F__
constexpr int kWordSums = 16;  // registers for sums

Codes add_word_pairs(Codes sum, Codes codes, Codes x) {
  return _mm512_add_epi32(sum, _mm512_madd_epi16(codes, x));
}
template <int kShift>
Codes shifted_words(Codes codes) {
  return kShift == 0 ? codes : _mm512_srli_epi16(codes, kShift);
}
Codes pair_in_all(int32_t pair) {
  return _mm512_set1_epi32(pair);
}
#else
constexpr int kWordSums = 8;

Codes add_word_pairs(Codes sum, Codes codes, Codes x) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(codes, x));
}
template <int kShift>
Codes shifted_words(Codes codes) {
  return kShift == 0 ? codes : _mm256_srli_epi16(codes, kShift);
}
Codes pair_in_all(int32_t pair) {
  return _mm256_set1_epi32(pair);
}
#endif

// Two inputs of each output of a register of codes, as words: of INT8 the even and the odd two of four; of INT4 the
// same of the first four of eight, then of the last four.
template <bool kInt4, int kPair>
Codes word_pair(Codes codes) {
  if constexpr (!kInt4) return kPair == 0 ? masked(codes, 0x00ff00ff) : shifted_words<8>(codes);
  constexpr int kShift = kPair % 2 * 8 + kPair / 2 * 4;
  return kShift == 12 ? shifted_words<12>(codes) : masked(shifted_words<kShift>(codes), 0x000f000f);
}

// sum += two inputs of kOuts registers of outputs times those of kRows rows.
template <int kRows, int kOuts, bool kInt4, int kPair>
[[gnu::always_inline]] inline void add_pair(Codes (&sum)[kRows][kOuts], const Codes (&codes)[kOuts], const PlaneCode* x,
                                            int64_t stride) {
  Codes pairs[kOuts];
#pragma GCC unroll 4
  for (int c = 0; c < kOuts; c++) pairs[c] = word_pair<kInt4, kPair>(codes[c]);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; r++) {
    int32_t two;
    __builtin_memcpy(&two, x + r * stride + kPair * 2, sizeof(two));
    const Codes all = pair_in_all(two);
#pragma GCC unroll 4
    for (int c = 0; c < kOuts; c++) sum[r][c] = add_word_pairs(sum[r][c], pairs[c], all);
  }
}

// sum = codes of some inputs of kOuts registers of outputs times kRows rows.
template <int kRows, int kOuts, bool kInt4>
[[gnu::always_inline]] inline void multiply_words(const std::byte* w, const PlaneCode* x, int64_t stride,
                                                  int64_t inputs, int64_t ahead, Codes (&sum)[kRows][kOuts]) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 4
    for (int c = 0; c < kOuts; c++) sum[r][c] = pair_in_all(0);
  for (int64_t k = 0; k < inputs; k += kInt4 ? 8 : 4, w += kTileOutputs * 4) {
    Codes codes[kOuts];
#pragma GCC unroll 4
    for (int64_t c = 0; c < kOuts; c++) codes[c] = load_codes(w + c * static_cast<int64_t>(sizeof(Codes)));
#pragma GCC unroll 4
    for (size_t at = 0; at < kOuts * sizeof(Codes); at += 64) fetch_line(w + at, ahead);
    add_pair<kRows, kOuts, kInt4, 0>(sum, codes, x + k, stride);
    add_pair<kRows, kOuts, kInt4, 1>(sum, codes, x + k, stride);
    if constexpr (kInt4) {
      add_pair<kRows, kOuts, kInt4, 2>(sum, codes, x + k, stride);
      add_pair<kRows, kOuts, kInt4, 3>(sum, codes, x + k, stride);
    }
  }
}

// Inputs of a group of a tile.
struct GroupPiece {
  const std::byte* group;
  const std::byte* codes;
  int64_t first;  // of all inputs
  int64_t inputs;
};

// sums [kRows][64] += products of a piece with rows from `row` on, before the scales of the rows.
template <int kRows, bool kInt4>
void add_word_rows(const Tile& tile, const Rows& rows, int64_t row, const GroupPiece& piece, float* sums) {
  constexpr int kOuts = kWordSums / kRows < 4 ? kWordSums / kRows : 4;
  const PlaneCode* x = rows.planes.codes + row * rows.padded + piece.first;
  Vec x_sum[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; r++) {
    x_sum[r] = Vec::all(group_sum(rows.planes, rows.padded, row + r, piece.first, piece.inputs));
  }
  for (int64_t column = 0; column < kColumns; column += kOuts) {
    Codes sum[kRows][kOuts];
    const std::byte* codes = piece.codes + column * static_cast<int64_t>(sizeof(Codes));
    multiply_words<kRows, kOuts, kInt4>(codes, x, rows.padded, piece.inputs, tile.ahead, sum);
#pragma GCC unroll 4
    for (int64_t c = 0; c < kOuts; c++) {
      const Affine affine(*tile.weight, *tile.layout, piece.group, column + c);
#pragma GCC unroll 4
      for (int64_t r = 0; r < kRows; r++) {
        float* place = sums + r * kTileOutputs + (column + c) * Vec::kLanes;
        add_product<1>(&sum[r][c], 0, affine, x_sum[r], Vec::load(place)).store(place);
      }
    }
  }
}

// sums [rows][64] += products of a piece with rows first ... last - 1.
template <bool kInt4>
void add_word_piece(const Tile& tile, const Rows& rows, const GroupPiece& piece, int64_t first, int64_t last,
                    float* sums) {
  for (int64_t row = first; row < last;) {
    float* out = sums + (row - first) * kTileOutputs;
    if (last - row >= 4) {
      add_word_rows<4, kInt4>(tile, rows, row, piece, out);
      row += 4;
    } else if (last - row >= 2) {
      add_word_rows<2, kInt4>(tile, rows, row, piece, out);
      row += 2;
    } else {
      add_word_rows<1, kInt4>(tile, rows, row, piece, out);
      row += 1;
    }
  }
}

// sums [rows][64] = the tile's products with rows first ... last - 1.
void word_tile(const Tile& tile, const Rows& rows, int64_t first, int64_t last, float* sums) {
  const WeightLayout& layout = *tile.layout;
  const bool int4 = tile.weight->format == CORE_FORMAT_INT4;
  const int64_t input_bytes = layout.code_bytes / layout.group;
  __builtin_memset(sums, 0, static_cast<size_t>((last - first) * kTileOutputs) * sizeof(float));
  for (int64_t g = 0; g < layout.groups; g++) {
    const std::byte* group = tile.data + g * layout.group_bytes;
    for (int64_t begin = 0; begin < layout.group; begin += kWordPiece) {
      const int64_t inputs = layout.group - begin < kWordPiece ? layout.group - begin : kWordPiece;
      const GroupPiece piece = {group, group + begin * input_bytes, g * layout.group + begin, inputs};
      int4 ? add_word_piece<true>(tile, rows, piece, first, last, sums)
           : add_word_piece<false>(tile, rows, piece, first, last, sums);
    }
  }
  scale_rows(rows.planes, first, last, sums);
}
