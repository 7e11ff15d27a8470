// Causal attention over pages. A job is a tile of queries of one KV head, over all of its context or over one part of
// it.
//
// The context is always split into parts of kPartTokens from position 0 on, each part into blocks of kBlockTokens, and
// the parts are joined in order: results depend neither on the other rows of a batch nor on the number of threads.

// ---- blocks ----

// Write the pages of `tokens` positions from `first` on, at most a block; return how many.
template <typename Page>
int64_t find_pages(const Attend& job, int64_t first, int64_t tokens, Page* pages) {
  const int64_t block_size = job.step.shape->block_size, count = (tokens + kPageTokens - 1) / kPageTokens;
  for (int64_t p = 0; p < count; p++) {
    const int64_t at = first + p * kPageTokens, block = job.sequence.blocks[at / block_size];
    pages[p] = job.step.kv.page(job.op.layer, block, job.head, at % block_size);
  }
  return count;
}

// Add positions first ... end - 1, at most a block, to the part.
void attend_block(const Attend& job, int64_t first, int64_t end) {
  std::byte* pages[kBlockPages];
  find_pages(job, first, end - first, pages);
  NextPages next;
  if (const int64_t left = job.context() - end; left > 0 && job.num_queries() >= kManyQueries) {
    next.count = find_pages(job, end, left < kBlockTokens ? left : kBlockTokens, next.pages);
    next.lines = job.step.kv.page_bytes / 64;
  }
  const int32_t kv = job.step.shape->kv;
  if (kv == CORE_KV_FLOAT32) return attend_pages<FloatPages>(job, first, end - first, pages, next);
  if (kv == CORE_KV_BFLOAT16) return attend_bfloat16(job, first, end - first, pages, next);
  attend_codes(job, first, end - first, pages, next);
}

// ---- parts ----

void clear(const Attend& job, const Partial& partial) {
  __builtin_memset(partial.mixed, 0, static_cast<size_t>(job.num_queries() * job.dim) * sizeof(float));
  for (int64_t q = 0; q < job.num_queries(); q++) {
    partial.largest[q] = kNothing;
    partial.total[q] = 0;
  }
}

// Compute one part of the context into job.part.
void attend_part(const Attend& job, int64_t part) {
  clear(job, job.part);
  const int64_t begin = part * kPartTokens, limit = begin + kPartTokens;
  const int64_t end = limit < job.context() ? limit : job.context();
  const int64_t seen = job.first_seen(0) / kBlockTokens * kBlockTokens;
  for (int64_t first = begin > seen ? begin : seen; first < end; first += kBlockTokens) {
    attend_block(job, first, end - first < kBlockTokens ? end : first + kBlockTokens);
  }
}

// whole = whole and part together, for one query.
void join(const Partial& whole, const Partial& part, int64_t q, int64_t dim) {
  const float before = whole.largest[q], now = part.largest[q] > before ? part.largest[q] : before;
  if (now == kNothing) return;
  const float keep = before == kNothing ? 0.0f : __builtin_expf(before - now);
  const float take = part.largest[q] == kNothing ? 0.0f : __builtin_expf(part.largest[q] - now);
  float *mixed = whole.mixed + q * dim, *added = part.mixed + q * dim;
  for (int64_t d = 0; d < dim; d += Vec::kLanes) {
    fma(Vec::load(added + d), Vec::all(take), Vec::load(mixed + d) * Vec::all(keep)).store(mixed + d);
  }
  whole.total[q] = whole.total[q] * keep + part.total[q] * take;
  whole.largest[q] = now;
}

// Return the sum of a query's weights, relative to that of its largest score. Infinite if a sink takes all.
float whole_sum(const Attend& job, int64_t q) {
  const float total = job.whole.total[q];
  if (job.op.sinks == nullptr) return total;
  return total + __builtin_expf(job.op.sinks[job.head * job.group + q % job.group] - job.whole.largest[q]);
}

// Write the output of every query q: row q / group, query head job.head * group + q % group.
void finish(const Attend& job) {
  const bool rotates = job.step.shape->kv == CORE_KV_UINT4;
  for (int64_t q = 0; q < job.num_queries(); q++) {
    const Vec factor = Vec::all(1.0f / whole_sum(job, q));
    const float* mixed = job.whole.mixed + q * job.dim;
    float* out = job.step.row(job.op.out, job.row + q / job.group) + (job.head * job.group + q % job.group) * job.dim;
    for (int64_t d = 0; d < job.dim; d += Vec::kLanes) (Vec::load(mixed + d) * factor).store(out + d);
    if (rotates) hadamard(out, hadamard_factor(job.dim), out, job.dim);
  }
}

// Write query q in bfloat16, if products are of pairs.
void round_query([[maybe_unused]] const Attend& job, [[maybe_unused]] int64_t q) {
#ifdef __AVX512BF16__
  const float* query = job.queries + q * job.dim;
#ifdef __AMX_BF16__
  if (in_tiles(*job.step.shape)) return fill_query(query, job.dim, job.pairs + q * pair_stride(job.dim));
#endif
  if (job.step.shape->kv == CORE_KV_BFLOAT16) round_row(query, job.dim, job.pairs + q * job.dim);
#endif
}

void load_queries(const Attend& job) {
  for (int64_t q = 0; q < job.num_queries(); q++) {
    const int64_t head = job.head * job.group + q % job.group;
    const float* in = job.step.row(job.op.q, job.row + q / job.group) + head * job.dim;
    float* out = job.queries + q * job.dim;
    for (int64_t d = 0; d < job.dim; d += Vec::kLanes) (Vec::load(in + d) * Vec::all(job.op.scale)).store(out + d);
    round_query(job, q);
    Vec total = Vec::zero();
    for (int64_t d = 0; d < job.dim; d += Vec::kLanes) total = total + Vec::load(out + d);
    job.query_sums[q] = sum(total);
  }
}
