// Products of quantized weights with activations in planes of int8, by AMX. Only for files compiled with AMX.

constexpr int64_t kCodePiece = 512;  // inputs whose codes fit a first-level cache
constexpr int64_t kMostDepth = 64;   // inputs of one step of a tile
constexpr int64_t kProductRow = kTileOutputs * 4;
constexpr int64_t kProductBytes = kTileRows * kProductRow;  // of 16 rows of codes with 64 outputs

// Return the rows of a tile for this many rows to compute: smaller tiles take less time.
int64_t rows_of_tile(int64_t rows) {
  return rows < kTileRows ? rows : kTileRows;
}

// A configuration of tiles: rows of activations, and their bytes.
struct TileShape {
  int64_t rows = 0, bytes = 0;
};

// Registers 0 ... 3 hold sums, 4 activations, 5 ... 7 weights. Whole tiles work for all implementations.
void configure_tiles(TileShape& now, int64_t rows, int64_t bytes) {
  if (now.rows == rows && now.bytes == bytes) return;
  now = {rows, bytes};
  TileConfig config = {};
  config.palette = 1;
  for (int tile = 0; tile < 8; tile++) {
    config.rows[tile] = static_cast<uint8_t>(tile < 5 ? rows : bytes / 4);
    config.row_bytes[tile] = static_cast<uint16_t>(tile == 4 ? bytes : 64);
  }
  load_config(config);
}

// Halves of bytes as bytes: [inputs / 8][64][4] to [inputs / 4][64][4].
void split_halves(const std::byte* in, int64_t inputs, int64_t ahead, std::byte* out) {
  const __m512i low = _mm512_set1_epi8(0x0f);
  for (int64_t k = 0; k < inputs; k += 8, in += 256, out += 512) {
    fetch_ahead(in, ahead);
    for (int64_t c = 0; c < 256; c += 64) {
      const __m512i both = _mm512_load_si512(in + c);
      _mm512_store_si512(out + c, _mm512_and_si512(both, low));
      _mm512_store_si512(out + 256 + c, _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
    }
  }
}

// products [16][64] = rows of codes, [rows][stride], times weights, [inputs / 4][64][4]. fresh: those come from
// memory.
void multiply_codes(const std::byte* w, const int8_t* x, int64_t stride, int64_t inputs, bool fresh,
                    std::byte* products) {
  const auto row = static_cast<int>(stride);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < inputs; k += kMostDepth, w += kMostDepth * kTileOutputs) {
    if (fresh) fetch_step(w);
    _tile_loadd(4, x + k, row);
    _tile_loadd(5, w, kProductRow);
    _tile_loadd(6, w + 64, kProductRow);
    _tile_loadd(7, w + 128, kProductRow);
    _tile_dpbsud(0, 4, 5);
    _tile_loadd(5, w + 192, kProductRow);
    _tile_dpbsud(1, 4, 6);
    _tile_dpbsud(2, 4, 7);
    _tile_dpbsud(3, 4, 5);
  }
  _tile_stored(0, products, kProductRow);
  _tile_stored(1, products + 64, kProductRow);
  _tile_stored(2, products + 128, kProductRow);
  _tile_stored(3, products + 192, kProductRow);
}

// sums [rows][64] += products of a group.
template <int kPlanes>
void add_products_of(const std::byte* products, const Affine (&affine)[4], const float* x_sums, int64_t rows,
                     float* sums) {
  for (int64_t row = 0; row < rows; row++, sums += kTileOutputs) {
    const Vec x_sum = Vec::all(x_sums[row]);
    const std::byte* product = products + row * kPlanes * kProductRow;
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++, product += 64) {
      const __m512i planes[2] = {_mm512_load_si512(product), _mm512_load_si512(product + (kPlanes - 1) * kProductRow)};
      add_product<kPlanes>(planes, 1, affine[c], x_sum, Vec::load(sums + c * 16)).store(sums + c * 16);
    }
  }
}

// Inputs begin ... begin + inputs - 1 of a group times all rows. scratch: for a block of products, and for codes
// as bytes.
template <int kPlanes>
void add_piece_codes(const Tile& tile, const Rows& rows, int64_t group, int64_t begin, int64_t inputs, int64_t first,
                     int64_t last, float* sums, std::byte* scratch) {
  constexpr int64_t kBlock = kTileRows / kPlanes;
  const WeightLayout& layout = *tile.layout;
  const std::byte* data = tile.data + group * layout.group_bytes;
  const int64_t bytes_before = layout.code_bytes / layout.group * begin, input = group * layout.group + begin;
  const std::byte* codes = data + bytes_before;
  const bool halves = tile.weight->format == CORE_FORMAT_INT4;
  if (halves) {
    split_halves(codes, inputs, tile.ahead, scratch + kProductBytes);
    codes = scratch + kProductBytes;
  }
  const Affine affine[4] = {{*tile.weight, layout, data, 0},
                            {*tile.weight, layout, data, 1},
                            {*tile.weight, layout, data, 2},
                            {*tile.weight, layout, data, 3}};
  for (int64_t row = first; row < last; row += kBlock) {
    const int64_t count = last - row < kBlock ? last - row : kBlock;
    const int8_t* x = rows.planes.codes + row * kPlanes * rows.padded + input;
    multiply_codes(codes, x, rows.padded, inputs, !halves && row == first, scratch);
    float x_sums[kBlock];
    for (int64_t r = 0; r < count; r++) x_sums[r] = group_sum(rows.planes, rows.padded, row + r, input, inputs);
    add_products_of<kPlanes>(scratch, affine, x_sums, count, sums + (row - first) * kTileOutputs);
  }
}

template <int kPlanes>
void add_codes(const Tile& tile, const Rows& rows, int64_t first, int64_t last, float* sums, std::byte* scratch) {
  const int64_t group = tile.layout->group;
  for (int64_t g = 0; g < tile.layout->groups; g++) {
    for (int64_t begin = 0; begin < group; begin += kCodePiece) {
      const int64_t inputs = group - begin < kCodePiece ? group - begin : kCodePiece;
      add_piece_codes<kPlanes>(tile, rows, g, begin, inputs, first, last, sums, scratch);
    }
  }
}

// sums [rows][64] = the tile's products with rows first ... last - 1. Rows of codes beyond the last are undefined.
void code_tile(const Tile& tile, const Rows& rows, int64_t first, int64_t last, float* sums, std::byte* scratch,
               TileShape& shape) {
  const int64_t codes = (last - first) * rows.planes.count, group = tile.layout->group;
  configure_tiles(shape, rows_of_tile(codes), group < kMostDepth ? group : kMostDepth);
  __builtin_memset(sums, 0, static_cast<size_t>((last - first) * kTileOutputs) * sizeof(float));
  if (rows.planes.count == 2) {
    add_codes<2>(tile, rows, first, last, sums, scratch);
  } else {
    add_codes<1>(tile, rows, first, last, sums, scratch);
  }
  scale_rows(rows.planes, first, last, sums);
}
