// Division of attention into jobs, and their scratch buffers.

// Return the number of rows to allocate for results: if more than one, a multiple of two tiles.
int64_t rows_for(int64_t queries) {
  return queries <= 16 ? queries : up_to(queries, 32);
}

int64_t most_queries(const CoreShape& shape) {
  const int64_t group = shape.heads / shape.kv_heads;
  return rows_for(group > kTileQueries ? group : kTileQueries);
}

int64_t parts_of(int64_t positions) {
  return (positions + kPartTokens - 1) / kPartTokens;
}

// True if the parts of the context are jobs of their own, because there are too few tiles for the threads. Only for
// steps whose tiles are single rows, which bounds the scratch for all parts.
constexpr int64_t kJobsPerThread = 4;

bool in_parts(const Step& step) {
  const int64_t threads = step.threads, jobs = int64_t{step.num_tiles} * step.shape->kv_heads;
  return threads > 1 && step.longest > kPartTokens && step.num_tiles == step.batch->num_sequences &&
         step.batch->num_tokens == step.num_tiles && jobs < kJobsPerThread * threads;
}

// Return the floats of the partial result of one part, for a single row and one KV head.
int64_t partial_floats(const CoreShape& shape) {
  return up_to(rows_for(shape.heads / shape.kv_heads) * (shape.head_dim + 2), 16);
}

Partial partial_at(float* base, int64_t queries, int64_t dim) {
  return {base, base + queries * dim, base + queries * dim + queries};
}

// Return the partial result of a part, which phase 0 writes and phase 1 reads.
Partial shared_partial(const Step& step, int64_t tile, int64_t head, int64_t part) {
  const CoreShape& shape = *step.shape;
  const int64_t slot = (tile * shape.kv_heads + head) * parts_of(step.longest) + part;
  float* base = reinterpret_cast<float*>(step.shared) + slot * partial_floats(shape);
  return partial_at(base, rows_for(shape.heads / shape.kv_heads), shape.head_dim);
}

int64_t attention_shared(const void*, const CoreShape& shape, int32_t threads) {
  const int64_t tiles = kJobsPerThread * threads / shape.kv_heads + 1;
  return tiles * shape.kv_heads * parts_of(shape.max_positions) * partial_floats(shape) * 4;
}

int64_t attention_scratch(const void*, const CoreShape& shape, int32_t) {
  const int64_t queries = most_queries(shape), dim = shape.head_dim;
  const int64_t pages = (2 * kBlockPages + 1) * kPageTokens * dim;
  return (4 * queries * up_to(dim, 32) + queries * kBlockTokens + pages + 5 * queries) * 4 + 7 * 64;
}

Attend attend_job(const CoreAttention& op, const Step& step, int64_t tile_number, int64_t head, Thread& thread) {
  const CoreShape& shape = *step.shape;
  const QueryTile& tile = step.tiles[tile_number];
  const CoreSequence& sequence = step.batch->sequences[tile.sequence];
  const int64_t queries = most_queries(shape), dim = shape.head_dim;
  float* at = reinterpret_cast<float*>(thread.scratch);
  float* query_scratch = at;
  at += queries * dim;
  float* query_sums = at;
  at += up_to(queries, 16);
  auto* pairs = reinterpret_cast<BFloat16*>(at);
  at += queries * up_to(dim, 32);
  const Partial part = partial_at(at, queries, dim);
  at += up_to(queries * (dim + 2), 16);
  const Partial whole = partial_at(at, queries, dim);
  at += up_to(queries * (dim + 2), 16);
  float* scores = at;
  at += queries * kBlockTokens;
  const int64_t row = step.first_row[tile.sequence] + tile.first;
  return {op,
          step,
          sequence,
          head,
          shape.heads / shape.kv_heads,
          dim,
          sequence.start + tile.first,
          tile.count,
          row,
          query_scratch,
          query_sums,
          pairs,
          scores,
          at,
          part,
          whole};
}

// ---- phase 0: tiles, or parts of tiles ----

int64_t attention_jobs(const void*, const Step& step) {
  const int64_t jobs = int64_t{step.num_tiles} * step.shape->kv_heads;
  return in_parts(step) ? jobs * parts_of(step.longest) : jobs;
}

void attend_whole(const Attend& job) {
  clear(job, job.whole);
  for (int64_t part = job.first_seen(0) / kPartTokens; part * kPartTokens < job.context(); part++) {
    attend_part(job, part);
    for (int64_t q = 0; q < job.num_queries(); q++) join(job.whole, job.part, q, job.dim);
  }
  finish(job);
}

void attention(const void* data, const Step& step, int64_t first, int64_t last, Thread& thread) {
  const auto& op = *static_cast<const CoreAttention*>(data);
  const int64_t heads = step.shape->kv_heads, parts = in_parts(step) ? parts_of(step.longest) : 1;
#ifdef __AMX_BF16__
  int64_t configured = 0;
#endif
  for (int64_t number = first; number < last; number++) {
    const int64_t part = number % parts, head = number / parts % heads, tile = number / parts / heads;
    Attend job = attend_job(op, step, tile, head, thread);
    load_queries(job);
#ifdef __AMX_BF16__
    if (in_tiles(*step.shape) && configured != job.num_queries()) configure_attention(configured = job.num_queries());
#endif
    if (!in_parts(step)) {
      attend_whole(job);
    } else if (part * kPartTokens < job.context()) {
      job.part = shared_partial(step, tile, head, part);
      attend_part(job, part);
    }
  }
#ifdef __AMX_BF16__
  if (configured != 0) _tile_release();
#endif
}

// ---- phase 1: joining of parts ----

int64_t join_jobs(const void*, const Step& step) {
  return in_parts(step) ? int64_t{step.num_tiles} * step.shape->kv_heads : 0;
}

void join_parts(const void* data, const Step& step, int64_t first, int64_t last, Thread& thread) {
  const auto& op = *static_cast<const CoreAttention*>(data);
  const int64_t heads = step.shape->kv_heads;
  for (int64_t number = first; number < last; number++) {
    const Attend job = attend_job(op, step, number / heads, number % heads, thread);
    clear(job, job.whole);
    for (int64_t part = job.first_seen(0) / kPartTokens; part * kPartTokens < job.context(); part++) {
      const Partial partial = shared_partial(step, number / heads, number % heads, part);
      for (int64_t q = 0; q < job.num_queries(); q++) join(job.whole, partial, q, job.dim);
    }
    finish(job);
  }
}

const Kernel attention_kernel = {
    {{attention_jobs, attention}, {join_jobs, join_parts}}, attention_shared, attention_scratch};
