// Products of 8-bit codes with one group per row of the matrix: sums stay in tiles from the first input to the last,
// and are scaled once. Only for files compiled with AMX.

constexpr int64_t kMostWholeInputs = 32768;  // with more, a 32-bit sum may overflow

bool in_whole_rows(const CoreWeight& weight) {
  return weight.format == CORE_FORMAT_INT8 && weight.group == 0 && weight.inputs <= kMostWholeInputs;
}

// Two tiles of 16 rows of codes: of one plane, or the planes of the same rows.
struct CodeTiles {
  const int8_t *upper, *lower;
  int64_t stride;
};

// sums [2][16][64] = both tiles times 32 outputs. Weights bypass the first-level cache, so that the rows stay there for
// the other outputs.
void multiply_two_tiles(const std::byte* w, const CodeTiles& x, int64_t inputs, Ahead& ahead, Places& places,
                        std::byte* sums) {
  const auto stride = static_cast<int>(x.stride);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < inputs; k += kMostDepth, w += kMostDepth * kTileOutputs) {
    reach_for_next(places);
    reach_for_next(places);
    ahead.fetch();
    _tile_loadd(4, x.upper + k, stride);
    _tile_stream_loadd(6, w, kProductRow);
    _tile_dpbsud(0, 4, 6);
    _tile_stream_loadd(7, w + 64, kProductRow);
    _tile_dpbsud(1, 4, 7);
    _tile_loadd(5, x.lower + k, stride);
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
  }
  _tile_stored(0, sums, kProductRow);
  _tile_stored(1, sums + 64, kProductRow);
  _tile_stored(2, sums + kProductBytes, kProductRow);
  _tile_stored(3, sums + kProductBytes + 64, kProductRow);
}

// Layout of sums in a scratch buffer: bytes from one row to the next, and from one plane of a row to the other.
struct SumPlaces {
  int64_t row, plane;
};

// Sums of `count` rows as outputs of rows `row` ... of the step.
template <int kPlanes>
void put_whole(const Affine (&affine)[4], const Planes& planes, int64_t row, int64_t count, const std::byte* sums,
               SumPlaces apart, const Places& places, int64_t place) {
  for (int64_t r = 0; r < count; r++, sums += apart.row) {
    const Vec total = Vec::all(planes.totals[row + r]), scale = Vec::all(planes.scales[row + r]);
    const auto* product = reinterpret_cast<const __m512i*>(sums);
    Vec out[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
      out[c] = add_product<kPlanes>(product + c, apart.plane / 64, affine[c], total, Vec::zero()) * scale;
    }
    put_row(places, place + r, out);
  }
}

// Rows first ... last - 1 of the step times a tile. Rows of codes beyond the last are undefined. scratch: for
// sums.
template <int kPlanes>
void whole_tile_of(const Tile& tile, const Rows& rows, int64_t first, int64_t last, const Places& places,
                   std::byte* scratch) {
  constexpr int64_t kBlock = 2 * kTileRows / kPlanes;
  const int64_t inputs = tile.layout->inputs, stride = kPlanes * rows.padded;
  const Affine affine[4] = {{*tile.weight, *tile.layout, tile.data, 0},
                            {*tile.weight, *tile.layout, tile.data, 1},
                            {*tile.weight, *tile.layout, tile.data, 2},
                            {*tile.weight, *tile.layout, tile.data, 3}};
  const int64_t steps = (last - first + kBlock - 1) / kBlock * 2;
  Ahead ahead = {tile.data + tile.layout->tile_bytes, (kTileOutputs + steps - 1) / steps};
  for (int64_t row = first; row < last; row += kBlock) {
    const int8_t* x = rows.planes.codes + row * stride;
    const int64_t count = last - row < kBlock ? last - row : kBlock;
    SumPlaces apart = {kProductRow, kProductBytes};
    if (count * kPlanes <= kTileRows) {
      multiply_codes(tile.data, x, rows.padded, inputs, row == first, scratch);
      apart = {kPlanes * kProductRow, kProductRow};
    } else {
      const CodeTiles two = {x, kPlanes == 1 ? x + kTileRows * stride : x + rows.padded, stride};
      Places next = places.from(row - first, count);
      multiply_two_tiles(tile.data, two, inputs, ahead, next, scratch);
      multiply_two_tiles(tile.data + 128, two, inputs, ahead, next, scratch + 128);
    }
    put_whole<kPlanes>(affine, rows.planes, row, count, scratch, apart, places, row - first);
  }
}

void whole_tile(const Tile& tile, const Rows& rows, int64_t first, int64_t last, const Places& places,
                std::byte* scratch) {
  if (rows.planes.count == 2) return whole_tile_of<2>(tile, rows, first, last, places, scratch);
  whole_tile_of<1>(tile, rows, first, last, places, scratch);
}
