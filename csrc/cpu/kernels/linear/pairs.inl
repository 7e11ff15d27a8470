// Products of bfloat16 pairs: vdpbf16ps for one row of activations, AMX tiles for many. Only for files compiled with
// AVX512_BF16; the tiles also require AMX.

template <int kRows>
void pair_rows(const Tile& tile, const BFloat16* x, int64_t stride, float* sums) {
  __m512 total[kRows][4];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) total[r][c] = _mm512_setzero_ps();
  const std::byte* w = tile.data;
  for (int64_t k = 0; k < tile.layout->inputs; k += 2, w += 256) {
    __m512bh weights[4];
    fetch_ahead(w, tile.ahead);
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) weights[c] = reinterpret_cast<__m512bh>(_mm512_load_si512(w + c * 64));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      int32_t pair;
      __builtin_memcpy(&pair, x + r * stride + k, sizeof(pair));
      const __m512bh all = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++) total[r][c] = _mm512_dpbf16_ps(total[r][c], weights[c], all);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) _mm512_storeu_ps(sums + r * kTileOutputs + c * 16, total[r][c]);
}

// sums [rows][64] = the tile's products with rows first ... last - 1.
void pair_tile(const Tile& tile, const Rows& rows, int64_t first, int64_t last, float* sums) {
  for (int64_t row = first; row < last;) {
    const BFloat16* x = rows.pairs + row * rows.stride;
    float* out = sums + (row - first) * kTileOutputs;
    if (last - row >= 4) {
      pair_rows<4>(tile, x, rows.stride, out);
      row += 4;
    } else if (last - row >= 2) {
      pair_rows<2>(tile, x, rows.stride, out);
      row += 2;
    } else {
      pair_rows<1>(tile, x, rows.stride, out);
      row += 1;
    }
  }
}

#ifdef __AMX_BF16__

constexpr int64_t kPairPiece = 1024;  // inputs whose pairs fit a second-level cache
constexpr int64_t kTileRows = 16;

struct TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// GCC 12 takes its own intrinsic to read eight bytes only, and would leave out stores to the others.
void load_config(const TileConfig& config) {
  __asm__ volatile("ldtilecfg %0" ::"m"(config));
}

// Four inputs of 16 outputs as two pairs; rounded to nearest, ties away from zero.
void put_pairs(const Vec (&four)[4], std::byte* out) {
  const __m512i half = _mm512_set1_epi32(0x8000), high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  for (int i = 0; i < 4; i += 2) {
    const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(four[i].v), half), 16);
    const __m512i top = _mm512_add_epi32(_mm512_castps_si512(four[i + 1].v), half);
    constexpr int kByFirst = 0xca;  // first ? second : third, bit by bit
    const __m512i both = _mm512_ternarylogic_epi32(high, top, low, kByFirst);
    _mm512_store_si512(out + i / 2 * kTileOutputs * 4, both);
  }
}

// Return inputs first ... last - 1 as pairs, [inputs / 2][64][2]: in place, or converted in the scratch buffer.
const std::byte* paired(const Tile& tile, int64_t first, int64_t last, std::byte* scratch) {
  if (tile.weight->format == CORE_FORMAT_BFLOAT16) return tile.data + first * kTileOutputs * 2;
  widen_integers(tile, first, last, [scratch](int64_t k, int64_t column, const Vec(&four)[4]) {
    put_pairs(four, scratch + (k / 2 * kTileOutputs + column * 16) * 4);
  });
  return scratch;
}

// Prefetch the next row, so that writing it does not wait for memory.
void reach_for_next(Places& places) {
  if (places.rows-- <= 0) return;
  for (int64_t i = 0; i < kTileOutputs; i += 16) __asm__ volatile("prefetchw %0" ::"m"(places.row[i]));
  places.row += places.stride;
}

// Prefetches from memory, a few cache lines at each step.
struct Ahead {
  const std::byte* at;
  int64_t lines;

  void fetch() {
    for (int64_t i = 0; i < lines; i++, at += 64) _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
  }
};

// Prefetch the data of the next step: 32 inputs of 64 outputs.
void fetch_step(const std::byte* pairs) {
  constexpr int64_t kStepBytes = 32 * kTileOutputs * 2;
#pragma GCC unroll 16
  for (int64_t at = 0; at < kStepBytes; at += 256) fetch_ahead(pairs + at, kStepBytes);
}

// Load the initial sums of a piece: zero, or those of the previous pieces.
void load_sums(const float* const (&places)[4], bool begun) {
  constexpr int kSumStride = kTileOutputs * 4;
  if (begun) {
    _tile_loadd(0, places[0], kSumStride);
    _tile_loadd(1, places[1], kSumStride);
    _tile_loadd(2, places[2], kSumStride);
    _tile_loadd(3, places[3], kSumStride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
}

void store_sums(float* const (&places)[4]) {
  constexpr int kSumStride = kTileOutputs * 4;
  _tile_stored(0, places[0], kSumStride);
  _tile_stored(1, places[1], kSumStride);
  _tile_stored(2, places[2], kSumStride);
  _tile_stored(3, places[3], kSumStride);
}

// Inputs of a tile of weights, as pairs.
struct PairPiece {
  const std::byte* pairs;  // [inputs / 2][64][2]
  int64_t inputs;
  bool begun;  // not the first piece
};

// sums [32][64] += two tiles of rows times all outputs of a piece, 32 outputs at a time. Weights bypass the first-level
// cache, so that the rows stay there for the other outputs.
void add_two_tiles(const PairPiece& piece, const BFloat16* x, int64_t stride, Ahead& ahead, float* sums,
                   Places places) {
  for (int64_t column = 0; column < kTileOutputs; column += 32) {
    float *upper = sums + column, *lower = upper + kTileRows * kTileOutputs;
    load_sums({upper, upper + 16, lower, lower + 16}, piece.begun);
    for (int64_t k = 0; k < piece.inputs; k += 32) {
      const std::byte* pairs = piece.pairs + (k / 2 * kTileOutputs + column) * 4;
      reach_for_next(places);
      ahead.fetch();
      _tile_loadd(4, x + k, static_cast<int>(stride * 2));
      _tile_stream_loadd(6, pairs, kTileOutputs * 4);
      _tile_stream_loadd(7, pairs + 64, kTileOutputs * 4);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, x + kTileRows * stride + k, static_cast<int>(stride * 2));
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    store_sums({upper, upper + 16, lower, lower + 16});
  }
}

// sums [16][64] += one tile of rows times all outputs of a piece.
void add_one_tile(const PairPiece& piece, const BFloat16* x, int64_t stride, Ahead& ahead, float* sums) {
  load_sums({sums, sums + 16, sums + 32, sums + 48}, piece.begun);
  for (int64_t k = 0; k < piece.inputs; k += 32) {
    const std::byte* pairs = piece.pairs + k / 2 * kTileOutputs * 4;
    ahead.fetch();
    _tile_loadd(4, x + k, static_cast<int>(stride * 2));
    _tile_loadd(5, pairs, kTileOutputs * 4);
    _tile_loadd(6, pairs + 64, kTileOutputs * 4);
    _tile_loadd(7, pairs + 128, kTileOutputs * 4);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(5, pairs + 192, kTileOutputs * 4);
    _tile_dpbf16ps(1, 4, 6);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 4, 5);
  }
  store_sums({sums, sums + 16, sums + 32, sums + 48});
}

// Rows first ... last - 1 of the step times inputs begin ... end - 1 of a tile. With the last inputs, the products are
// written while still in cache; if these are all inputs, no sums are kept.
void add_piece(const Tile& tile, const Rows& rows, int64_t begin, int64_t end, int64_t first, int64_t last, float* sums,
               std::byte* scratch, const Places& places) {
  const int64_t inputs = tile.layout->inputs, bytes = tile.layout->tile_bytes / (inputs / 32);
  const PairPiece piece = {paired(tile, begin, end, scratch), end - begin, begin != 0};
  const int64_t passes = (last - first + kTileRows - 1) / kTileRows;
  Ahead ahead = {tile.data + bytes * (end / 32), bytes / 64 / passes + 1};
  for (int64_t row = first, step; row < last; row += step) {
    const BFloat16* x = rows.pairs + row * rows.stride + begin;
    float* out = sums + (end - begin == inputs ? 0 : row - first) * kTileOutputs;
    step = last - row > kTileRows ? 2 * kTileRows : kTileRows;
    const Places now = places.from(row - first, end < inputs ? 0 : (last - row < step ? last - row : step));
    if (step > kTileRows) {
      add_two_tiles(piece, x, rows.stride, ahead, out, now);
    } else {
      add_one_tile(piece, x, rows.stride, ahead, out);
    }
    put_sums(now, out);
  }
}

// Rows first ... last - 1 of the step times a tile. Rows of pairs beyond the last are undefined. sums: scratch for all
// rows, padded to two whole tiles.
void amx_tile(const Tile& tile, const Rows& rows, int64_t first, int64_t last, float* sums, std::byte* scratch,
              const Places& places) {
  const int64_t inputs = tile.layout->inputs;
  for (int64_t begin = 0; begin < inputs; begin += kPairPiece) {
    const int64_t end = begin + kPairPiece < inputs ? begin + kPairPiece : inputs;
    add_piece(tile, rows, begin, end, first, last, sums, scratch, places);
  }
}

#endif
