// Products in float32: weights widened a piece at a time.

constexpr int64_t kFloatPiece = 128;  // inputs; a multiple of every group, and its floats fit a first-level cache

// sums[r][...] += x[r][...] * w over a piece, for kRows rows and kRegisters registers of outputs.
template <int kRows, int kRegisters>
void add_products(const float* w, const float* x, int64_t stride, int64_t inputs, float* sums) {
  Vec total[kRows][kRegisters];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 8
    for (int c = 0; c < kRegisters; c++) total[r][c] = Vec::load(sums + r * kTileOutputs + c * Vec::kLanes);
  for (int64_t k = 0; k < inputs; k++) {
    Vec weights[kRegisters];
#pragma GCC unroll 8
    for (int c = 0; c < kRegisters; c++) weights[c] = Vec::load(w + k * kTileOutputs + c * Vec::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      const Vec all = Vec::all(x[r * stride + k]);
#pragma GCC unroll 8
      for (int c = 0; c < kRegisters; c++) total[r][c] = fma(weights[c], all, total[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 8
    for (int c = 0; c < kRegisters; c++) total[r][c].store(sums + r * kTileOutputs + c * Vec::kLanes);
}

// All 64 outputs; as many registers at once as hold sums without spilling.
template <int kRows>
void add_all_products(const float* w, const float* x, int64_t stride, int64_t inputs, float* sums) {
  constexpr int kAtOnce = Vec::kLanes == 16 ? 4 : 8 / kRows;
  for (int64_t c = 0; c < kColumns; c += kAtOnce) {
    add_products<kRows, kAtOnce>(w + c * Vec::kLanes, x, stride, inputs, sums + c * Vec::kLanes);
  }
}

// sums [rows][64] = the tile's products with rows first ... last - 1.
void float_tile(const Tile& tile, const Rows& rows, int64_t first, int64_t last, float* sums, std::byte* scratch) {
  const int64_t inputs = tile.weight->inputs;
  __builtin_memset(sums, 0, static_cast<size_t>((last - first) * kTileOutputs) * sizeof(float));
  for (int64_t begin = 0; begin < inputs; begin += kFloatPiece) {
    const int64_t end = begin + kFloatPiece < inputs ? begin + kFloatPiece : inputs;
    const int64_t filled = begin + kFloatPiece < tile.layout->inputs ? begin + kFloatPiece : tile.layout->inputs;
    const float* w = widened(tile, begin, filled, reinterpret_cast<float*>(scratch));
    for (int64_t row = first; row < last;) {
      const float* x = rows.floats + row * rows.width + begin;
      float* out = sums + (row - first) * kTileOutputs;
      if (last - row >= 4) {
        add_all_products<4>(w, x, rows.width, end - begin, out);
        row += 4;
      } else if (last - row >= 2) {
        add_all_products<2>(w, x, rows.width, end - begin, out);
        row += 2;
      } else {
        add_all_products<1>(w, x, rows.width, end - begin, out);
        row += 1;
      }
    }
  }
}
