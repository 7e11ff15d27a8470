// Attention to a block of pages of codes.

// Keys and values of a block in codes: where their products find them, and their steps and lows. Those of values in
// slots that were never written are zero.
struct CodeBlock {
  const std::byte *keys[kBlockPages], *values[kBlockPages];
  float key_steps[kBlockTokens], key_lows[kBlockTokens], value_steps[kBlockTokens], value_lows[kBlockTokens];

  void take_scales(const CodePage& page, int64_t first, int64_t tokens) {
    for (int64_t t = 0; t < kPageTokens; t++) {
      key_steps[first + t] = page.key_steps[t];
      key_lows[first + t] = page.key_lows[t];
      value_steps[first + t] = first + t < tokens ? page.value_steps[t] : 0;
      value_lows[first + t] = first + t < tokens ? page.value_lows[t] : 0;
    }
  }
};

// Turn products of query q with codes into weights times the steps of values, for products with codes; return the sum
// of weights times lows.
float weigh_codes(const Attend& job, const CodeBlock& block, float* scores, int64_t q, int64_t first, int64_t tokens) {
  const Vec total = Vec::all(job.query_sums[q]);
  const int64_t covered = up_to(tokens, kPageTokens);
  for (int64_t t = 0; t < covered; t += Vec::kLanes) {
    const Vec low = Vec::load(block.key_lows + t) * total;
    fma(Vec::load(scores + t), Vec::load(block.key_steps + t), low).store(scores + t);
  }
  weigh_floats(job, scores, q, first, tokens);
  Vec lows = Vec::zero();
  for (int64_t t = 0; t < covered; t += Vec::kLanes) {
    const Vec weights = Vec::load(scores + t);
    lows = fma(weights, Vec::load(block.value_lows + t), lows);
    const Vec scaled = weights * Vec::load(block.value_steps + t);
    // Numbers below the normal ones, of positions that hardly count, would take the processor many times as long.
    where_less(scaled, Vec::all(__FLT_MIN__), Vec::zero(), scaled).store(scores + t);
  }
  return sum(lows);
}

// Add `tokens` positions from `first` on to the part, kQueriesAtOnce queries at a time, as attend_pages does. Products
// are of codes as floats, which are exact, whether they were converted for all queries or are for each.
template <typename Keys, typename Values>
void attend_code_pages(const Attend& job, int64_t first, int64_t tokens, const CodeBlock& block,
                       const NextPages& next) {
  const bool many = job.num_queries() >= kManyQueries;
  const int64_t count = (tokens + kPageTokens - 1) / kPageTokens, dim = job.dim;
  for (int64_t q = 0; q < job.num_queries(); q += kQueriesAtOnce) {
    const int64_t left = job.num_queries() - q, queries = left < kQueriesAtOnce ? left : kQueriesAtOnce;
    divide_queries<Keys::kMostQueries>(queries, [&]<int kQueries>(int64_t r) {
      float* scores = job.scores + r * kBlockTokens;
      score_queries<Keys, kQueries>(block.keys, count, job.queries + (q + r) * dim, dim, scores);
    });
    float lows[kQueriesAtOnce];
    for (int64_t r = 0; r < queries; r++) {
      if (many) next.fetch(q + r, job.num_queries());
      lows[r] = weigh_codes(job, block, job.scores + r * kBlockTokens, q + r, first, tokens);
    }
    divide_queries<Values::kMostQueries>(queries, [&]<int kQueries>(int64_t r) {
      const float* weights = job.scores + r * kBlockTokens;
      mix_queries<Values, kQueries>(block.values, count, many || Vec::kLanes == 16, weights, dim,
                                    job.part.mixed + (q + r) * dim);
    });
    for (int64_t r = 0; r < queries; r++) {
      float* mixed = job.part.mixed + (q + r) * dim;
      for (int64_t d = 0; d < dim; d += Vec::kLanes) (Vec::load(mixed + d) + Vec::all(lows[r])).store(mixed + d);
    }
  }
}

// Codes are multiplied as floats: what pairs round would move other layers' codes.
void attend_codes(const Attend& job, int64_t first, int64_t tokens, std::byte* const* pages, const NextPages& next) {
  const auto kv = static_cast<CoreKv>(job.step.shape->kv);
  const bool expands = job.num_queries() >= kManyQueries || (kv == CORE_KV_UINT4 && job.dim % 32 != 0);
  const int64_t entries = kPageTokens * job.dim;
  CodeBlock block;
  for (int64_t p = 0; p * kPageTokens < tokens; p++) {
    const CodePage codes(pages[p], kv, job.dim);
    float* scratch = job.pages + 2 * p * entries;
    if (expands) expand_codes(codes, kv, job.dim, scratch, scratch + entries);
    block.take_scales(codes, p * kPageTokens, tokens);
    block.keys[p] = reinterpret_cast<const std::byte*>(expands ? static_cast<void*>(scratch) : codes.keys);
    block.values[p] =
        reinterpret_cast<const std::byte*>(expands ? static_cast<void*>(scratch + entries) : codes.values);
  }
  if (expands) return attend_code_pages<FloatPages, FloatPages>(job, first, tokens, block, next);
  if (kv == CORE_KV_INT8) return attend_code_pages<BytePages, BytePages>(job, first, tokens, block, next);
  attend_code_pages<HalfKeyPages, HalfValuePages>(job, first, tokens, block, next);
}
