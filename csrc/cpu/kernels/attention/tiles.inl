// Attention to a block of pages by AMX, for pages of bfloat16: keys are tiles already, and values where they follow one
// another. Queries and weights are rounded to bfloat16. Only for files compiled with AMX.

constexpr int kScoreRow = kBlockTokens * 4;

// Registers 0 ... 3 hold sums, 4 rows, 5 ... 7 keys or values; or 4 and 5 rows, where there are more than 16. Each row
// of a sum has the same bits whatever `rows` is.
void configure_attention(int64_t rows) {
  TileConfig config = {};
  config.palette = 1;
  for (int tile = 0; tile < 8; tile++) {
    config.rows[tile] = static_cast<uint8_t>(tile > 4 || rows > kTileRows ? kTileRows : rows);
    config.row_bytes[tile] = 64;
  }
  load_config(config);
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

// ---- scores ----

// Return the address in a page of the keys' entries for 32 entries of a query.
int64_t key_place(int64_t d, int64_t dim) {
  return (d + 32 <= dim ? d : dim - 32) / 2 * kPageTokens * 4;
}

// scores[q][token] of four pages for a tile of queries.
void score_four_pages(const BFloat16* queries, const std::byte* const (&pages)[4], int64_t dim, float* scores) {
  const int stride = static_cast<int>(pair_stride(dim) * 2);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t d = 0; d < dim; d += 32) {
    const int64_t key = key_place(d, dim);
    _tile_loadd(4, queries + d, stride);
    _tile_loadd(5, pages[0] + key, 64);
    _tile_loadd(6, pages[1] + key, 64);
    _tile_loadd(7, pages[2] + key, 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(5, pages[3] + key, 64);
    _tile_dpbf16ps(1, 4, 6);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, scores, kScoreRow);
  _tile_stored(1, scores + kPageTokens, kScoreRow);
  _tile_stored(2, scores + 2 * kPageTokens, kScoreRow);
  _tile_stored(3, scores + 3 * kPageTokens, kScoreRow);
}

// scores[q][token] of two pages for two tiles of queries.
void score_two_pages(const BFloat16* queries, const std::byte* const (&pages)[2], int64_t dim, float* scores) {
  const int stride = static_cast<int>(pair_stride(dim) * 2);
  const BFloat16* lower = queries + kTileRows * pair_stride(dim);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t d = 0; d < dim; d += 32) {
    const int64_t key = key_place(d, dim);
    _tile_loadd(4, queries + d, stride);
    _tile_loadd(5, lower + d, stride);
    _tile_loadd(6, pages[0] + key, 64);
    _tile_loadd(7, pages[1] + key, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, scores, kScoreRow);
  _tile_stored(1, scores + kPageTokens, kScoreRow);
  _tile_stored(2, scores + kTileRows * kBlockTokens, kScoreRow);
  _tile_stored(3, scores + kTileRows * kBlockTokens + kPageTokens, kScoreRow);
}

// Scores of up to 32 queries. Entries beyond the last page are undefined.
void score_tiles(const Attend& job, int64_t q, int64_t rows, const std::byte* const* pages, int64_t count) {
  const BFloat16* queries = job.pairs + q * pair_stride(job.dim);
  const auto page = [&](int64_t p) { return pages[p < count ? p : count - 1]; };
  for (int64_t p = 0; rows <= kTileRows && p < count; p += 4) {
    score_four_pages(queries, {page(p), page(p + 1), page(p + 2), page(p + 3)}, job.dim, job.scores + p * kPageTokens);
  }
  for (int64_t p = 0; rows > kTileRows && p < count; p += 2) {
    score_two_pages(queries, {page(p), page(p + 1)}, job.dim, job.scores + p * kPageTokens);
  }
}

// ---- values ----

// The values of a block one after the other, with zeros in slots that were never written, up to a whole tile.
const std::byte* joined_values(const Attend& job, const std::byte* const* keys, int64_t tokens) {
  const int64_t row = job.dim * 4, page = kPageTokens / 2 * row, count = (tokens + kPageTokens - 1) / kPageTokens;
  auto* values = reinterpret_cast<std::byte*>(job.pages);
  for (int64_t p = 0; p < count; p++) __builtin_memcpy(values + p * page, keys[p] + page, static_cast<size_t>(page));
  const int64_t begin = (tokens + 1) / 2 * row, end = up_to(tokens, kPairTokens) / 2 * row;
  __builtin_memset(values + begin, 0, static_cast<size_t>(end - begin));
  if (tokens % 2 != 0) {
    auto* last = reinterpret_cast<BFloat16*>(values + begin - row);
    for (int64_t d = 0; d < job.dim; d++) last[2 * d + 1] = {0};
  }
  return values;
}

// mixed[q][...] += weights[q][token] * values[token][...] for a tile of queries and four times 16 entries.
void mix_four_columns(const float* weights, const std::byte* values, int64_t tokens, int64_t dim,
                      float* const (&mixed)[4]) {
  const int stride = static_cast<int>(dim * 4);
  const auto column = [&](int i) { return values + (mixed[i] - mixed[0]) * 4; };
  const std::byte* const columns[4] = {column(0), column(1), column(2), column(3)};
  _tile_loadd(0, mixed[0], stride);
  _tile_loadd(1, mixed[1], stride);
  _tile_loadd(2, mixed[2], stride);
  _tile_loadd(3, mixed[3], stride);
  for (int64_t t = 0; t < tokens; t += kPairTokens) {
    const int64_t place = t / 2 * stride;
    _tile_loadd(4, reinterpret_cast<const BFloat16*>(weights) + t, kScoreRow);
    _tile_loadd(5, columns[0] + place, stride);
    _tile_loadd(6, columns[1] + place, stride);
    _tile_loadd(7, columns[2] + place, stride);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(5, columns[3] + place, stride);
    _tile_dpbf16ps(1, 4, 6);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, mixed[0], stride);
  _tile_stored(1, mixed[1], stride);
  _tile_stored(2, mixed[2], stride);
  _tile_stored(3, mixed[3], stride);
}

// The same for two tiles of queries and twice 16 entries.
void mix_two_columns(const float* weights, const std::byte* values, int64_t tokens, int64_t dim,
                     float* const (&mixed)[2]) {
  const int stride = static_cast<int>(dim * 4);
  const std::byte* other = values + (mixed[1] - mixed[0]) * 4;
  const auto* upper = reinterpret_cast<const BFloat16*>(weights);
  const auto* lower = reinterpret_cast<const BFloat16*>(weights + kTileRows * kBlockTokens);
  _tile_loadd(0, mixed[0], stride);
  _tile_loadd(1, mixed[1], stride);
  _tile_loadd(2, mixed[0] + kTileRows * dim, stride);
  _tile_loadd(3, mixed[1] + kTileRows * dim, stride);
  for (int64_t t = 0; t < tokens; t += kPairTokens) {
    const int64_t place = t / 2 * stride;
    _tile_loadd(4, upper + t, kScoreRow);
    _tile_loadd(5, lower + t, kScoreRow);
    _tile_loadd(6, values + place, stride);
    _tile_loadd(7, other + place, stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, mixed[0], stride);
  _tile_stored(1, mixed[1], stride);
  _tile_stored(2, mixed[0] + kTileRows * dim, stride);
  _tile_stored(3, mixed[1] + kTileRows * dim, stride);
}

// Add the weighted values for up to 32 queries. The last entries may be computed twice, with the same result.
void mix_tiles(const Attend& job, int64_t q, int64_t rows, const std::byte* values, int64_t tokens) {
  float* mixed = job.part.mixed + q * job.dim;
  const auto entry = [&](int64_t d) { return mixed + (d < job.dim ? d : job.dim - 16); };
  for (int64_t d = 0; rows <= kTileRows && d < job.dim; d += 64) {
    mix_four_columns(job.scores, values + d * 4, tokens, job.dim,
                     {entry(d), entry(d + 16), entry(d + 32), entry(d + 48)});
  }
  for (int64_t d = 0; rows > kTileRows && d < job.dim; d += 32) {
    mix_two_columns(job.scores, values + d * 4, tokens, job.dim, {entry(d), entry(d + 16)});
  }
}

// Add a block to the part, 32 queries at a time.
void attend_tiles(const Attend& job, int64_t first, int64_t tokens, const std::byte* const* keys) {
  const std::byte* values = joined_values(job, keys, tokens);
  for (int64_t q = 0; q < job.num_queries(); q += 2 * kTileRows) {
    const int64_t left = job.num_queries() - q, rows = left < 2 * kTileRows ? left : 2 * kTileRows;
    score_tiles(job, q, rows, keys, (tokens + kPageTokens - 1) / kPageTokens);
    for (int64_t r = 0; r < rows; r++) weigh_pairs(job, job.scores + r * kBlockTokens, q + r, first, tokens);
    mix_tiles(job, q, rows, values, up_to(tokens, kPairTokens));
  }
}
