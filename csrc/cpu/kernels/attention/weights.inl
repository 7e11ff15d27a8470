// The state of attention, and the online softmax (Milakov & Gimelshein, "Online normalizer calculation for softmax",
// 2018).

constexpr int64_t kPartTokens = 512;
constexpr int64_t kBlockTokens = 128;
constexpr int64_t kBlockPages = kBlockTokens / kPageTokens;
constexpr float kNothing = -__builtin_inff();  // the largest score of a row without visible keys

// True if AMX computes scores and outputs.
[[maybe_unused]] bool in_tiles(const CoreShape& shape) {
#ifdef __AMX_BF16__
  return shape.kv == CORE_KV_BFLOAT16 && shape.head_dim >= 32;
#endif
  (void)shape;
  return false;
}

// Running state of rows: the weighted values, and the largest score and the sum of weights of each.
struct Partial {
  float* mixed;    // [queries][head_dim]
  float* largest;  // [queries]
  float* total;    // [queries]
};

// The job of a tile of queries and one KV head, with its scratch buffers.
struct Attend {
  const CoreAttention& op;
  const Step& step;
  const CoreSequence& sequence;
  int64_t head;   // KV head
  int64_t group;  // query heads of a KV head
  int64_t dim;
  int64_t position;   // of the first row
  int64_t count;      // rows
  int64_t row;        // of the batch
  float* queries;     // [count * group][dim], scaled
  float* query_sums;  // [count * group], of their entries
  BFloat16* pairs;    // the same in bfloat16, if products are of pairs
  float* scores;      // [queries at once][kBlockTokens]; weights in bfloat16 begin where a row does
  float* pages;       // scratch for a block of pages in float32
  Partial part, whole;

  int64_t num_queries() const { return count * group; }
  int64_t context() const { return position + count; }
  // Visible positions of query q: first_seen(q) to last_seen(q).
  int64_t last_seen(int64_t q) const { return position + q / group; }
  int64_t first_seen(int64_t q) const {
    const int64_t first = last_seen(q) - op.window + 1;
    return op.window == 0 || first < 0 ? 0 : first;
  }
  // True if `covered` positions from `first` on are visible to every query.
  bool all_seen(int64_t first, int64_t covered) const { return op.window == 0 && first + covered <= position + 1; }
};

// Set the scores of `covered` positions to -infinity except those of begin ... end - 1.
void hide_scores(float* scores, int64_t begin, int64_t end, int64_t covered) {
  for (int64_t t = 0; t < begin; t++) scores[t] = kNothing;
  for (int64_t t = end; t < covered; t++) scores[t] = kNothing;
}

void cap_scores(float* scores, float cap, int64_t covered) {
  for (int64_t t = 0; t < covered; t += Vec::kLanes) {
    (tanh(Vec::load(scores + t) * Vec::all(1.0f / cap)) * Vec::all(cap)).store(scores + t);
  }
}

float largest_score(const float* scores, int64_t covered) {
  Vec even = Vec::all(kNothing), odd = even;
  for (int64_t t = 0; t < covered; t += 2 * Vec::kLanes) {
    even = max(even, Vec::load(scores + t));
    if (t + Vec::kLanes < covered) odd = max(odd, Vec::load(scores + t + Vec::kLanes));
  }
  return largest(max(even, odd));
}

// Replace scores by e^(score - top), 0 for masked ones; return their sum.
float put_weights(float* scores, int64_t covered, float top) {
  const Vec highest = Vec::all(top), hidden = Vec::all(-__FLT_MAX__);
  Vec total = Vec::zero();
  for (int64_t t = 0; t < covered; t += Vec::kLanes) {
    const Vec score = Vec::load(scores + t);
    const Vec weights = where_less(score, hidden, Vec::zero(), exp(score - highest));
    weights.store(scores + t);
    total = total + weights;
  }
  return sum(total);
}

// Cap and mask the scores of query q for `tokens` positions from `first` on; return the new maximum.
float settle_scores(const Attend& job, float* scores, int64_t q, int64_t first, int64_t tokens, int64_t covered) {
  if (job.op.soft_cap > 0) cap_scores(scores, job.op.soft_cap, covered);
  if (!job.all_seen(first, covered)) {
    const int64_t seen = job.last_seen(q) + 1 - first;
    const int64_t begin = job.first_seen(q) > first ? job.first_seen(q) - first : 0;
    const int64_t end = seen < 0 ? 0 : (seen < tokens ? seen : tokens);
    hide_scores(scores, begin < covered ? begin : covered, end, covered);
  }
  const float before = job.part.largest[q], block = largest_score(scores, covered);
  return block > before ? block : before;
}

// Update the running state of the part: rescale it from the maximum `before` to `now`, and add `total` to its sum.
void take_in(const Attend& job, int64_t q, float before, float now, float total) {
  if (now > before && before != kNothing) {
    const Vec shrink = exp(Vec::all(before - now));
    float* mixed = job.part.mixed + q * job.dim;
    for (int64_t d = 0; d < job.dim; d += Vec::kLanes) (Vec::load(mixed + d) * shrink).store(mixed + d);
    job.part.total[q] *= largest(shrink);
  }
  job.part.total[q] += total;
  job.part.largest[q] = now;
}

// Turn the scores of `tokens` positions from `first` on into weights, and update the running state of the part.
void weigh_floats(const Attend& job, float* scores, int64_t q, int64_t first, int64_t tokens) {
  const int64_t covered = up_to(tokens, kPageTokens);
  const float before = job.part.largest[q], now = settle_scores(job, scores, q, first, tokens, covered);
  if (now == kNothing) {
    __builtin_memset(scores, 0, kBlockTokens * sizeof(float));
    return;
  }
  take_in(job, q, before, now, put_weights(scores, covered, now));
}
