// Products of quantized weights with activations as integers, by instructions that add products of two or of four
// neighbours.

constexpr int64_t kPieceInputs = 128;  // the sums of more of the largest products overflow 32 bits
constexpr int kMostRows = 4;           // at a time: registers hold the sums of no more
constexpr int64_t kBlockRows = 96;     // rows whose sums stay in a first-level cache

#ifdef __AVX512F__
Codes in_all(int32_t inputs) {
  return _mm512_set1_epi32(inputs);
}
template <int kShift>
Codes shifted_words(Codes codes) {
  return kShift == 0 ? codes : _mm512_srli_epi16(codes, kShift);
}
#else
Codes in_all(int32_t inputs) {
  return _mm256_set1_epi32(inputs);
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
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(codes, x));
#endif
  }
};

#ifdef __AVX512VNNI__

constexpr bool kHasByteProducts = true;

// Activations of 8 bits, four neighbours at a time.
struct ByteProducts {
  using Number = int8_t;
  static constexpr int64_t kInputs = 4;

  static const Number* numbers(const Planes& planes) { return planes.codes; }

  template <bool kInt4, int kPart>
  static Codes part(Codes codes) {
    if constexpr (!kInt4) return codes;
    return masked(shifted_words<kPart * 4>(codes), 0x0f0f0f0f);
  }

  static Codes add(Codes sum, Codes codes, Codes x) { return _mm512_dpbusd_epi32(sum, codes, x); }
};

#else

constexpr bool kHasByteProducts = false;

#endif

// Parts of a register of codes: those of 8 bits are of four inputs of each output, those of 4 bits of eight.
template <typename Kind, bool kInt4>
constexpr int64_t kParts = (kInt4 ? 8 : 4) / Kind::kInputs;

// sum += a part of kOuts registers of codes times that of kRows rows.
template <typename Kind, bool kInt4, int kPart, int kRows, int kOuts>
[[gnu::always_inline]] inline void add_part(Codes (&sum)[kRows][kOuts], const Codes (&codes)[kOuts],
                                            const typename Kind::Number* x, int64_t stride) {
  if constexpr (kPart < kParts<Kind, kInt4>) {
    Codes parts[kOuts];
#pragma GCC unroll 4
    for (int c = 0; c < kOuts; c++) parts[c] = Kind::template part<kInt4, kPart>(codes[c]);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      int32_t inputs;
      __builtin_memcpy(&inputs, x + r * stride + kPart * Kind::kInputs, sizeof(inputs));
      const Codes all = in_all(inputs);
#pragma GCC unroll 4
      for (int c = 0; c < kOuts; c++) {
        sum[r][c] = Kind::add(sum[r][c], parts[c], all);
        __asm__("" : "+v"(sum[r][c]));  // GCC adds in another order otherwise, for which registers do not suffice
      }
    }
  }
}

// sum = codes of some inputs of kOuts registers of outputs times kRows rows.
template <typename Kind, bool kInt4, int kRows, int kOuts>
[[gnu::always_inline]] inline void multiply_codes_of(const std::byte* w, const typename Kind::Number* x, int64_t stride,
                                                     int64_t inputs, int64_t ahead, Codes (&sum)[kRows][kOuts]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 4
    for (int c = 0; c < kOuts; c++) sum[r][c] = in_all(0);
  constexpr int64_t kStep = kParts<Kind, kInt4> * Kind::kInputs;
  for (int64_t k = 0; k < inputs; k += kStep, w += kTileOutputs * 4) {
    Codes codes[kOuts];
#pragma GCC unroll 4
    for (int64_t c = 0; c < kOuts; c++) codes[c] = load_codes(w + c * static_cast<int64_t>(sizeof(Codes)));
#pragma GCC unroll 4
    for (size_t at = 0; at < kOuts * sizeof(Codes); at += 64) fetch_line(w + at, ahead);
    add_part<Kind, kInt4, 0>(sum, codes, x + k, stride);
    add_part<Kind, kInt4, 1>(sum, codes, x + k, stride);
    add_part<Kind, kInt4, 2>(sum, codes, x + k, stride);
    add_part<Kind, kInt4, 3>(sum, codes, x + k, stride);
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
template <typename Kind, bool kInt4, int kRows>
void add_piece_rows(const Tile& tile, const Rows& rows, int64_t row, const GroupPiece& piece, float* sums) {
  constexpr int kOuts = Vec::kLanes == 16 || kRows <= 2 ? 4 : 2;
  const auto* x = Kind::numbers(rows.planes) + row * rows.padded + piece.first;
  Vec x_sum[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
    x_sum[r] = Vec::all(group_sum(rows.planes, rows.padded, row + r, piece.first, piece.inputs));
  }
  for (int64_t column = 0; column < kColumns; column += kOuts) {
    Codes sum[kRows][kOuts];
    const std::byte* codes = piece.codes + column * static_cast<int64_t>(sizeof(Codes));
    multiply_codes_of<Kind, kInt4>(codes, x, rows.padded, piece.inputs, tile.ahead, sum);
#pragma GCC unroll 4
    for (int64_t c = 0; c < kOuts; c++) {
      const Affine affine(*tile.weight, *tile.layout, piece.group, column + c);
#pragma GCC unroll 8
      for (int64_t r = 0; r < kRows; r++) {
        float* place = sums + r * kTileOutputs + (column + c) * Vec::kLanes;
        add_product<1>(&sum[r][c], 0, affine, x_sum[r], Vec::load(place)).store(place);
      }
    }
  }
}

// sums [rows][64] += products of a piece with rows first ... last - 1, kRows at a time, and the rest fewer.
template <typename Kind, bool kInt4, int kRows>
void add_piece_products(const Tile& tile, const Rows& rows, const GroupPiece& piece, int64_t first, int64_t last,
                        float* sums) {
  for (; last - first >= kRows; first += kRows, sums += kRows * kTileOutputs) {
    add_piece_rows<Kind, kInt4, kRows>(tile, rows, first, piece, sums);
  }
  if constexpr (kRows > 1) {
    add_piece_products<Kind, kInt4, (kRows > 4 ? 4 : kRows / 2)>(tile, rows, piece, first, last, sums);
  }
}

// sums [rows][64] = the tile's products with rows first ... last - 1.
template <typename Kind, bool kInt4>
void integer_rows(const Tile& tile, const Rows& rows, int64_t first, int64_t last, float* sums) {
  const WeightLayout& layout = *tile.layout;
  const int64_t input_bytes = layout.code_bytes / layout.group;
  __builtin_memset(sums, 0, static_cast<size_t>((last - first) * kTileOutputs) * sizeof(float));
  for (int64_t g = 0; g < layout.groups; g++) {
    const std::byte* group = tile.data + g * layout.group_bytes;
    for (int64_t begin = 0; begin < layout.group; begin += kPieceInputs) {
      const int64_t inputs = layout.group - begin < kPieceInputs ? layout.group - begin : kPieceInputs;
      const GroupPiece piece = {group, group + begin * input_bytes, g * layout.group + begin, inputs};
      add_piece_products<Kind, kInt4, kMostRows>(tile, rows, piece, first, last, sums);
    }
  }
  scale_rows(rows.planes, first, last, sums);
}

template <typename Kind>
void integer_blocks(const Tile& tile, const Rows& rows, int64_t first, int64_t last, float* sums) {
  const bool int4 = tile.weight->format == CORE_FORMAT_INT4;
  for (int64_t row = first; row < last; row += kBlockRows, sums += kBlockRows * kTileOutputs) {
    const int64_t end = last - row < kBlockRows ? last : row + kBlockRows;
    int4 ? integer_rows<Kind, true>(tile, rows, row, end, sums) : integer_rows<Kind, false>(tile, rows, row, end, sums);
  }
}

// sums [rows][64] = the tile's products with rows first ... last - 1.
void integer_tile(const Tile& tile, const Rows& rows, int64_t first, int64_t last, float* sums) {
#ifdef __AVX512VNNI__
  if (rows.planes.words == nullptr) return integer_blocks<ByteProducts>(tile, rows, first, last, sums);
#endif
  integer_blocks<WordProducts>(tile, rows, first, last, sums);
}
