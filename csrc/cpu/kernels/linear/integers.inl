// Products of quantized weights with activations as integers.

constexpr int64_t kPieceInputs = 128;  // the sums of more of the largest products overflow 32 bits
constexpr int64_t kNarrowInputs = 32;  // the sums of more products of codes of 4 bits overflow 16 bits
constexpr int64_t kBlockRows = 96;     // rows whose sums stay in a first-level cache

// Rows at a time: registers hold the sums of no more. Codes that are multiplied as they lie leave more registers.
template <typename Kind, typename Unpack>
constexpr int kMostRows = Vec::kLanes == 16 && Unpack::kInputs == Kind::kInputs ? 6 : 4;

// Parts of a register of codes.
template <typename Kind, typename Unpack>
constexpr int64_t kParts = Unpack::kInputs / Kind::kInputs;

// sum += a part of kOuts registers of codes times that of kRows rows.
template <typename Kind, typename Unpack, int kPart, bool kBegins, int kRows, int kOuts>
[[gnu::always_inline]] inline void add_part(const Unpack& unpack, Codes (&sum)[kRows][kOuts],
                                            const Codes (&codes)[kOuts], const typename Kind::Number* x,
                                            int64_t stride) {
  if constexpr (kPart < kParts<Kind, Unpack>) {
    Codes parts[kOuts];
#pragma GCC unroll 4
    for (int c = 0; c < kOuts; c++) parts[c] = Kind::template part<kPart>(unpack, codes[c]);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      int32_t inputs;
      __builtin_memcpy(&inputs, x + r * stride + kPart * Kind::kInputs, sizeof(inputs));
      const Codes all = in_all(inputs);
#pragma GCC unroll 4
      for (int c = 0; c < kOuts; c++) {
        if constexpr (kBegins) {
          sum[r][c] = Kind::multiply(parts[c], all);
        } else {
          sum[r][c] = Kind::add(sum[r][c], parts[c], all);
        }
        __asm__("" : "+v"(sum[r][c]));  // GCC adds in another order otherwise, for which registers do not suffice
      }
    }
  }
}

template <int kRows, int kOuts>
[[gnu::always_inline]] inline void clear(Codes (&sum)[kRows][kOuts]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 4
    for (int c = 0; c < kOuts; c++) sum[r][c] = in_all(0);
}

// sum += a register of codes for each of kOuts registers of outputs times kRows rows; kBegins: those products alone.
template <typename Kind, bool kBegins, typename Unpack, int kRows, int kOuts>
[[gnu::always_inline]] inline void add_step(const Unpack& unpack, const std::byte* w, const typename Kind::Number* x,
                                            int64_t stride, int64_t ahead, Codes (&sum)[kRows][kOuts]) {
  Codes codes[kOuts];
#pragma GCC unroll 4
  for (int64_t c = 0; c < kOuts; c++) codes[c] = load_codes(w + c * static_cast<int64_t>(sizeof(Codes)));
#pragma GCC unroll 4
  for (size_t at = 0; at < kOuts * sizeof(Codes); at += 64) fetch_line(w + at, ahead);
  add_part<Kind, Unpack, 0, kBegins>(unpack, sum, codes, x, stride);
  add_part<Kind, Unpack, 1, false>(unpack, sum, codes, x, stride);
  add_part<Kind, Unpack, 2, false>(unpack, sum, codes, x, stride);
  add_part<Kind, Unpack, 3, false>(unpack, sum, codes, x, stride);
}

// sum += codes of some inputs of kOuts registers of outputs times kRows rows.
template <typename Kind, typename Unpack, int kRows, int kOuts>
[[gnu::always_inline]] inline void add_codes_of(const Unpack& unpack, const std::byte* w,
                                                const typename Kind::Number* x, int64_t stride, int64_t inputs,
                                                int64_t ahead, Codes (&sum)[kRows][kOuts]) {
  for (int64_t k = 0; k < inputs; k += Unpack::kInputs, w += kTileOutputs * 4) {
    add_step<Kind, false>(unpack, w, x + k, stride, ahead, sum);
  }
}

// The same with sums in 16 bits on the way. inputs: at most kNarrowInputs.
template <typename Kind, typename Unpack, int kRows, int kOuts>
[[gnu::always_inline]] inline void add_narrow_codes_of(const Unpack& unpack, const std::byte* w,
                                                       const typename Kind::Number* x, int64_t stride, int64_t inputs,
                                                       int64_t ahead, Codes (&sum)[kRows][kOuts]) {
  constexpr int64_t kBegun = kRows > 2 ? Unpack::kInputs : 0;  // a row or two take longer with code of their own for it
  Codes narrow[kRows][kOuts];
  if constexpr (kBegun > 0) {
    add_step<Kind, true>(unpack, w, x, stride, ahead, narrow);
  } else {
    clear(narrow);
  }
  add_codes_of<Kind>(unpack, w + kBegun * kTileOutputs / 2, x + kBegun, stride, inputs - kBegun, ahead, narrow);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 4
    for (int c = 0; c < kOuts; c++) sum[r][c] = plus(sum[r][c], Kind::widened(narrow[r][c]));
}

// sum = codes of some inputs of kOuts registers of outputs times kRows rows.
template <typename Kind, typename Unpack, int kRows, int kOuts>
[[gnu::always_inline]] inline void multiply_codes_of(const Unpack& unpack, const std::byte* w,
                                                     const typename Kind::Number* x, int64_t stride, int64_t inputs,
                                                     int64_t ahead, Codes (&sum)[kRows][kOuts]) {
  clear(sum);
  if constexpr (!Kind::kNarrow) {
    add_codes_of<Kind>(unpack, w, x, stride, inputs, ahead, sum);
  } else {
    const int64_t once = inputs < kNarrowInputs ? inputs : kNarrowInputs;
    add_narrow_codes_of<Kind>(unpack, w, x, stride, once, ahead, sum);
    for (int64_t k = once; k < inputs; k += once) {
      add_narrow_codes_of<Kind>(unpack, w + k * kTileOutputs / 2, x + k, stride, once, ahead, sum);
    }
  }
}

// Inputs of a group of a tile.
template <typename Unpack>
struct GroupPiece {
  const Unpack& unpack;
  const Affine* affine;  // [kColumns]
  const std::byte* codes;
  int64_t first;  // of all inputs
  int64_t inputs;
};

// sums [kRows][64] += products of a piece with rows from `row` on, before the scales of the rows.
template <typename Kind, typename Unpack, int kRows>
[[gnu::always_inline]] inline void add_piece_rows(const Tile& tile, const Rows& rows, int64_t row,
                                                  const GroupPiece<Unpack>& piece, float* sums) {
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
    multiply_codes_of<Kind>(piece.unpack, codes, x, rows.padded, piece.inputs, tile.ahead, sum);
#pragma GCC unroll 4
    for (int64_t c = 0; c < kOuts; c++) {
      const Affine& affine = piece.affine[column + c];
#pragma GCC unroll 8
      for (int64_t r = 0; r < kRows; r++) {
        float* place = sums + r * kTileOutputs + (column + c) * Vec::kLanes;
        add_product<1>(&sum[r][c], 0, affine, x_sum[r], Vec::load(place)).store(place);
      }
    }
  }
}

// The same as a function of its own, in which GCC finds registers for what it spills where it is part of another.
template <typename Kind, typename Unpack, int kRows>
[[gnu::noinline]] void add_piece_rows_apart(const Tile& tile, const Rows& rows, int64_t row,
                                            const GroupPiece<Unpack>& piece, float* sums) {
  add_piece_rows<Kind, Unpack, kRows>(tile, rows, row, piece, sums);
}

// sums [rows][64] += products of a piece with rows first ... last - 1, kRows at a time, and the rest fewer.
template <typename Kind, typename Unpack, int kRows>
void add_piece_products(const Tile& tile, const Rows& rows, const GroupPiece<Unpack>& piece, int64_t first,
                        int64_t last, float* sums) {
  for (; last - first >= kRows; first += kRows, sums += kRows * kTileOutputs) {
    if constexpr (kApart) {
      add_piece_rows_apart<Kind, Unpack, kRows>(tile, rows, first, piece, sums);
    } else {
      add_piece_rows<Kind, Unpack, kRows>(tile, rows, first, piece, sums);
    }
  }
  if constexpr (kRows > 1) {
    add_piece_products<Kind, Unpack, (kRows > 4 ? 4 : kRows / 2)>(tile, rows, piece, first, last, sums);
  }
}

// sums [rows][64] = the tile's products with rows first ... last - 1.
template <typename Kind, typename Unpack>
void integer_rows(const Tile& tile, const Rows& rows, int64_t first, int64_t last, float* sums) {
  const WeightLayout& layout = *tile.layout;
  const int64_t input_bytes = layout.code_bytes / layout.group;
  const Unpack unpack(*tile.weight);
  __builtin_memset(sums, 0, static_cast<size_t>((last - first) * kTileOutputs) * sizeof(float));
  for (int64_t g = 0; g < layout.groups; g++) {
    const std::byte* group = tile.data + g * layout.group_bytes;
    Affine affine[kColumns];
#pragma GCC unroll 8
    for (int64_t c = 0; c < kColumns; c++) affine[c] = Affine(*tile.weight, layout, group, c, unpack.zero);
    for (int64_t begin = 0; begin < layout.group; begin += kPieceInputs) {
      const int64_t inputs = layout.group - begin < kPieceInputs ? layout.group - begin : kPieceInputs;
      const GroupPiece<Unpack> piece = {unpack, affine, group + begin * input_bytes, g * layout.group + begin, inputs};
      add_piece_products<Kind, Unpack, kMostRows<Kind, Unpack>>(tile, rows, piece, first, last, sums);
    }
  }
  scale_rows(rows.planes, first, last, sums);
}

template <typename Kind, typename Unpack>
void integer_blocks(const Tile& tile, const Rows& rows, int64_t first, int64_t last, float* sums) {
  for (int64_t row = first; row < last; row += kBlockRows, sums += kBlockRows * kTileOutputs) {
    integer_rows<Kind, Unpack>(tile, rows, row, last - row < kBlockRows ? last : row + kBlockRows, sums);
  }
}

// Whether activations of 8 bits are multiplied as such, not as words.
bool takes_bytes(const CoreWeight& weight) {
  return ByteProducts::kTakesInt8 || (weight.format == CORE_FORMAT_INT4 && weight.codebook == 0);
}

// sums [rows][64] = the tile's products with rows first ... last - 1.
void integer_tile(const Tile& tile, const Rows& rows, int64_t first, int64_t last, float* sums) {
  const bool int4 = tile.weight->format == CORE_FORMAT_INT4, table = tile.weight->codebook != 0;
  if (rows.planes.words != nullptr) {
    if (table) return integer_blocks<WordProducts, TableCodes>(tile, rows, first, last, sums);
    if (int4) return integer_blocks<WordProducts, HalfCodes>(tile, rows, first, last, sums);
    return integer_blocks<WordProducts, WholeCodes>(tile, rows, first, last, sums);
  }
  if constexpr (ByteProducts::kTakesInt8) {
    if (table) return integer_blocks<ByteProducts, TableCodes>(tile, rows, first, last, sums);
    if (!int4) return integer_blocks<ByteProducts, WholeCodes>(tile, rows, first, last, sums);
  }
  integer_blocks<ByteProducts, HalfCodes>(tile, rows, first, last, sums);
}
