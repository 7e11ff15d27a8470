// Scores and values by AMX, for pages of bfloat16: they are tiles already. Queries and weights are rounded to bfloat16.
// Only for files compiled with AMX.

// One accumulator, and what goes into it.
struct TileSum {
  const std::byte* rows;   // of queries, or of weights
  const std::byte* inner;  // of keys, or where the values' columns begin in a page
  float* sums;
};

// Registers 0 ... 3 hold sums; 4 and 5 queries and keys, 32 entries of a head deep; 6 and 7 weights and values, a page
// deep. Each row of a sum has the same bits whatever `rows` is.
void configure_attention(int64_t rows) {
  TileConfig config = {};
  config.palette = 1;
  for (int tile = 0; tile < 8; tile++) {
    config.rows[tile] = static_cast<uint8_t>(rows < kTileRows ? rows : kTileRows);
    config.row_bytes[tile] = 64;
  }
  config.rows[5] = 16;
  config.row_bytes[6] = 32;
  config.rows[7] = 8;
  load_config(config);
}

void store_sums(const TileSum (&four)[4], int stride) {
  _tile_stored(0, four[0].sums, stride);
  _tile_stored(1, four[1].sums, stride);
  _tile_stored(2, four[2].sums, stride);
  _tile_stored(3, four[3].sums, stride);
}

// Entries of a row of queries: where the head's last piece is half a tile, that piece follows as a whole one.
int64_t pair_stride(int64_t dim) {
  return up_to(dim, 32);
}

// A row of queries in bfloat16. The last piece begins 32 entries before the end: what another has already is zero.
void fill_query(const float* query, int64_t dim, BFloat16* out) {
  for (int64_t d = 0; d < dim; d += 16) {
    const bool last = dim % 32 != 0 && d + 16 == dim;
    auto* place = reinterpret_cast<__m256i*>(out + d);
    if (last) _mm256_storeu_si256(place++, _mm256_setzero_si256());
    _mm256_storeu_si256(place, bfloat16_of(_mm512_loadu_ps(query + d)));
  }
}

void score_four(const TileSum (&four)[4], int64_t dim) {
  const int query_stride = static_cast<int>(pair_stride(dim) * 2);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t d = 0; d < dim; d += 32) {
    const int64_t key = (d + 32 <= dim ? d : dim - 32) / 2 * kPageTokens * 4;
    _tile_loadd(4, four[0].rows + d * 2, query_stride);
    _tile_loadd(5, four[0].inner + key, 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(4, four[1].rows + d * 2, query_stride);
    _tile_loadd(5, four[1].inner + key, 64);
    _tile_dpbf16ps(1, 4, 5);
    _tile_loadd(4, four[2].rows + d * 2, query_stride);
    _tile_loadd(5, four[2].inner + key, 64);
    _tile_dpbf16ps(2, 4, 5);
    _tile_loadd(4, four[3].rows + d * 2, query_stride);
    _tile_loadd(5, four[3].inner + key, 64);
    _tile_dpbf16ps(3, 4, 5);
  }
  store_sums(four, kBlockTokens * 4);
}

void mix_four(const TileSum (&four)[4], const std::byte* const* pages, int64_t count, int64_t dim) {
  const int stride = static_cast<int>(dim * 4);
  _tile_loadd(0, four[0].sums, stride);
  _tile_loadd(1, four[1].sums, stride);
  _tile_loadd(2, four[2].sums, stride);
  _tile_loadd(3, four[3].sums, stride);
  for (int64_t p = 0; p < count; p++) {
    const int64_t weight = p * kPageTokens * 2;
    _tile_loadd(6, four[0].rows + weight, kBlockTokens * 4);
    _tile_loadd(7, pages[p] + (four[0].inner - pages[0]), stride);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(6, four[1].rows + weight, kBlockTokens * 4);
    _tile_loadd(7, pages[p] + (four[1].inner - pages[0]), stride);
    _tile_dpbf16ps(1, 6, 7);
    _tile_loadd(6, four[2].rows + weight, kBlockTokens * 4);
    _tile_loadd(7, pages[p] + (four[2].inner - pages[0]), stride);
    _tile_dpbf16ps(2, 6, 7);
    _tile_loadd(6, four[3].rows + weight, kBlockTokens * 4);
    _tile_loadd(7, pages[p] + (four[3].inner - pages[0]), stride);
    _tile_dpbf16ps(3, 6, 7);
  }
  store_sums(four, stride);
}

// Four sums at a time; at the end one may be computed twice.
template <typename At, typename Run>
void in_fours(int64_t count, At at, Run run) {
  for (int64_t i = 0; i < count; i += 4) {
    TileSum four[4];
    for (int64_t j = 0; j < 4; j++) four[j] = at(i + j < count ? i + j : count - 1);
    run(four);
  }
}

void score_tiles(const Attend& job, const std::byte* const* pages, int64_t count) {
  const int64_t tiles = (job.num_queries() + kTileRows - 1) / kTileRows;
  const int64_t row_bytes = pair_stride(job.dim) * 2;
  in_fours(
      tiles * count,
      [&](int64_t i) -> TileSum {
        const int64_t page = i / tiles, row = i % tiles * kTileRows;
        const auto* queries = reinterpret_cast<const std::byte*>(job.pairs) + row * row_bytes;
        return {queries, pages[page], job.scores + row * kBlockTokens + page * kPageTokens};
      },
      [&](const TileSum(&four)[4]) { score_four(four, job.dim); });
}

void mix_tiles(const Attend& job, const std::byte* const* pages, int64_t count) {
  const int64_t tiles = (job.num_queries() + kTileRows - 1) / kTileRows;
  in_fours(
      tiles * (job.dim / 16),
      [&](int64_t i) -> TileSum {
        const int64_t column = i / tiles * 16, row = i % tiles * kTileRows;
        const auto* weights = reinterpret_cast<const std::byte*>(job.scores + row * kBlockTokens);
        return {weights, pages[0] + column * 4, job.part.mixed + row * job.dim + column};
      },
      [&](const TileSum(&four)[4]) { mix_four(four, pages, count, job.dim); });
}
