// Products in float32: of many rows with weights widened a piece at a time, of few with weights widened in registers.
// Both add the same terms in the same order.

constexpr int64_t kFloatPiece = 128;  // inputs; a multiple of every group, and its floats fit a first-level cache
constexpr int64_t kDirectRows = 8;    // with more, widening in registers takes longer than once for all rows

// Weights as they lie in a tile, [inputs][64]; `get` widens kInputs inputs of a register of outputs.
struct Floats {
  static constexpr int64_t kInputs = 1;
  const float* numbers;

  [[gnu::always_inline]] void get(int64_t k, int64_t column, Vec (&out)[1]) const {
    out[0] = Vec::load(numbers + k * kTileOutputs + column * Vec::kLanes);
  }
  [[gnu::always_inline]] void fetch(int64_t) const {}
};

struct Halves {
  static constexpr int64_t kInputs = 1;
  const uint16_t* numbers;
  int64_t ahead;

  [[gnu::always_inline]] void get(int64_t k, int64_t column, Vec (&out)[1]) const {
    out[0] = widen(numbers + k * kTileOutputs + column * Vec::kLanes);
  }
  [[gnu::always_inline]] void fetch(int64_t k) const {
    const auto* place = reinterpret_cast<const std::byte*>(numbers + k * kTileOutputs);
    fetch_line(place, ahead);
    fetch_line(place + 64, ahead);
  }
};

struct Pairs {
  static constexpr int64_t kInputs = 2;
  const std::byte* numbers;
  int64_t ahead;

  [[gnu::always_inline]] void get(int64_t k, int64_t column, Vec (&out)[2]) const {
    widen_pair(load_codes(numbers + (k / 2 * kTileOutputs + column * Vec::kLanes) * 4), out);
  }
  [[gnu::always_inline]] void fetch(int64_t k) const { fetch_ahead(numbers + k * kTileOutputs * 2, ahead); }
};

// total[r][c] += x[r][i] * the widened kCount inputs from k on, for registers of outputs from `column` on.
template <int kCount, int kRows, int kRegisters, typename Weights>
[[gnu::always_inline]] inline void add_inputs(const Weights& weights, int64_t k, int64_t column, const float* x,
                                              int64_t stride, Vec (&total)[kRows][kRegisters]) {
  Vec numbers[kRegisters][Weights::kInputs];
#pragma GCC unroll 8
  for (int c = 0; c < kRegisters; c++) weights.get(k, column + c, numbers[c]);
#pragma GCC unroll 2
  for (int i = 0; i < kCount; i++)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      const Vec all = Vec::all(x[r * stride + k + i]);
#pragma GCC unroll 8
      for (int c = 0; c < kRegisters; c++) total[r][c] = fma(numbers[c][i], all, total[r][c]);
    }
}

// The same with all x at once and a register of outputs at a time, for so few rows that registers hold those.
template <int kCount, int kRows, int kRegisters, typename Weights>
[[gnu::always_inline]] inline void add_inputs_by_outputs(const Weights& weights, int64_t k, int64_t column,
                                                         const float* x, int64_t stride,
                                                         Vec (&total)[kRows][kRegisters]) {
  Vec all[kRows][kCount];
#pragma GCC unroll 2
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 2
    for (int i = 0; i < kCount; i++) all[r][i] = Vec::all(x[r * stride + k + i]);
#pragma GCC unroll 8
  for (int c = 0; c < kRegisters; c++) {
    Vec numbers[Weights::kInputs];
    weights.get(k, column + c, numbers);
#pragma GCC unroll 2
    for (int i = 0; i < kCount; i++)
#pragma GCC unroll 2
      for (int r = 0; r < kRows; r++) total[r][c] = fma(numbers[i], all[r][i], total[r][c]);
  }
}

// sums[r][...] += x[r][...] * weights over a piece, for kRows rows and kRegisters registers of outputs from `column`
// on.
template <int kRows, int kRegisters, typename Weights>
void add_products(const Weights& weights, int64_t column, const float* x, int64_t stride, int64_t inputs, float* sums) {
  Vec total[kRows][kRegisters];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 8
    for (int c = 0; c < kRegisters; c++) total[r][c] = Vec::load(sums + r * kTileOutputs + (column + c) * Vec::kLanes);
  const auto add = [&]<int kCount>(int64_t k) {
    if constexpr (kRows <= 2) {
      add_inputs_by_outputs<kCount>(weights, k, column, x, stride, total);
    } else {
      add_inputs<kCount>(weights, k, column, x, stride, total);
    }
  };
  int64_t k = 0;
  for (; k + Weights::kInputs <= inputs; k += Weights::kInputs) {
    if (column == 0) weights.fetch(k);
    add.template operator()<Weights::kInputs>(k);
  }
  if (k < inputs) add.template operator()<1>(k);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 8
    for (int c = 0; c < kRegisters; c++) total[r][c].store(sums + r * kTileOutputs + (column + c) * Vec::kLanes);
}

// All 64 outputs; as many registers at once as hold sums without spilling.
template <int kRows, typename Weights>
void add_all_products(const Weights& weights, const float* x, int64_t stride, int64_t inputs, float* sums) {
  constexpr int kAtOnce = Vec::kLanes == 16 ? 4 : (kRows > 4 ? 2 : 8 / kRows);
  for (int64_t column = 0; column < kColumns; column += kAtOnce) {
    add_products<kRows, kAtOnce>(weights, column, x, stride, inputs, sums);
  }
}

// sums [count][64] += rows x, [count][stride], times inputs of a tile: kRows at a time, and the rest fewer.
template <int kRows, typename Weights>
void add_float_rows(const Weights& weights, const float* x, int64_t stride, int64_t inputs, int64_t count,
                    float* sums) {
  for (; count >= kRows; count -= kRows, x += kRows * stride, sums += kRows * kTileOutputs) {
    add_all_products<kRows>(weights, x, stride, inputs, sums);
  }
  if constexpr (kRows > 1) {
    if (count > 0) add_float_rows<(kRows > 4 ? 4 : kRows / 2)>(weights, x, stride, inputs, count, sums);
  }
}

// sums [rows][64] = the tile's products with rows first ... last - 1.
void float_tile(const Tile& tile, const Rows& rows, int64_t first, int64_t last, float* sums, std::byte* scratch) {
  const int64_t inputs = tile.weight->inputs, count = last - first, stride = rows.width;
  const int32_t format = count <= kDirectRows ? tile.weight->format : CORE_FORMAT_FLOAT32;
  __builtin_memset(sums, 0, static_cast<size_t>(count * kTileOutputs) * sizeof(float));
  for (int64_t begin = 0; begin < inputs; begin += kFloatPiece) {
    const int64_t end = begin + kFloatPiece < inputs ? begin + kFloatPiece : inputs;
    const int64_t filled = begin + kFloatPiece < tile.layout->inputs ? begin + kFloatPiece : tile.layout->inputs;
    const float* x = rows.floats + first * stride + begin;
    const std::byte* numbers = tile.data + begin * kTileOutputs * 2;
    if (format == CORE_FORMAT_BFLOAT16) {
      add_float_rows<4>(Pairs{numbers, tile.ahead}, x, stride, end - begin, count, sums);
    } else if (format == CORE_FORMAT_FLOAT16) {
      const auto* halves = reinterpret_cast<const uint16_t*>(numbers);
      add_float_rows<4>(Halves{halves, tile.ahead}, x, stride, end - begin, count, sums);
    } else {
      const Floats floats{widened(tile, begin, filled, reinterpret_cast<float*>(scratch))};
      add_float_rows<6>(floats, x, stride, end - begin, count, sums);
    }
  }
}
