// Sampling of a token from a row of logits: changes, cuts, sampling, logprobs. A job is a row.

struct Summary {
  float top;    // the largest
  bool finite;  // no infinity, no NaN
};

Summary summary_of(const float* x, int64_t n) {
  Vec most = Vec::all(kNothing), zeros = Vec::zero();
  for (int64_t i = 0; i < n; i += Vec::kLanes) {
    const int64_t lanes = n - i < Vec::kLanes ? n - i : Vec::kLanes;
    Vec v = Vec::load_first(x + i, lanes);
    zeros = fma(v, Vec::zero(), zeros);
    if (lanes < Vec::kLanes) v = Vec::all(x[i]);
    most = max(most, v);
    for (int64_t rest = i; lanes < Vec::kLanes && rest < n; rest++) most = max(most, Vec::all(x[rest]));
  }
  return {largest(most), sum(zeros) == 0.0f};
}

// Return the first index of the largest number.
int64_t first_of(const float* x, int64_t n, float top) {
  int64_t i = 0;
  for (; i + Vec::kLanes <= n; i += Vec::kLanes) {
    const uint32_t there = not_less(Vec::load(x + i), Vec::all(top));
    if (there != 0) return i + __builtin_ctz(there);
  }
  for (; i < n; i++) {
    if (x[i] == top) return i;
  }
  return -1;
}

// (logit - top) / temperature of a register of logits; -inf beyond the end or for logits below floor.
[[gnu::always_inline]] inline Vec scaled_logits(const float* logits, int64_t lanes, Vec top, Vec rate, Vec floor) {
  Vec x = Vec::load_first(logits, lanes);
  if (lanes < Vec::kLanes) {
    float part[Vec::kLanes];
    Vec::all(kNothing).store(part);
    x.store_first(part, lanes);
    x = Vec::load(part);
  }
  return where_less(x, floor, Vec::all(kNothing), (x - top) * rate);
}

// log(sum of e^(x - top)): lanes are summed in float32 for some registers, then all in float64.
double log_sum(const float* x, int64_t n, float top) {
  constexpr int64_t kBlock = 16 * Vec::kLanes;
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = begin + kBlock < n ? begin + kBlock : n;
    Vec part = Vec::zero();
    for (int64_t i = begin; i < end; i += Vec::kLanes) {
      const int64_t lanes = end - i < Vec::kLanes ? end - i : Vec::kLanes;
      part = part + exp(scaled_logits(x + i, lanes, Vec::all(top), Vec::all(1.0f), Vec::all(-__FLT_MAX__)));
    }
    total += static_cast<double>(sum(part));
  }
  return __builtin_log(total);
}

// Ids whose scores may be the best, within the rounding of float32.
struct Best {
  int32_t* ids;  // in ascending order
  int64_t count = 0;
  float score = -__FLT_MAX__;

  void add(int64_t id, float candidate) {
    if (!(candidate >= score - 2 * kScoreDoubt)) return;
    if (candidate > score + 2 * kScoreDoubt) count = 0;
    if (candidate > score) score = candidate;
    ids[count++] = static_cast<int32_t>(id);
  }
};

// Return the id, of logits not below floor, with the largest (logit - top) / temperature + noise, ties by lowest id.
// Scores too close for float32 are compared in float64. scratch: for n ids.
int64_t draw(const CoreSampling& sampling, const float* logits, int64_t n, float top, float floor, float* scratch) {
  const Vec highest = Vec::all(top), rate = Vec::all(rate_of(sampling.temperature));
  const Vec lowest = Vec::all(floor);
  Best best{reinterpret_cast<int32_t*>(scratch)};
  for (int64_t i = 0; i < n; i += Vec::kLanes) {
    const int64_t lanes = n - i < Vec::kLanes ? n - i : Vec::kLanes;
    const Vec scaled = scaled_logits(logits + i, lanes, highest, rate, lowest);
    if (not_less(scaled, Vec::all(best.score - kMostNoise - 4 * kScoreDoubt)) == 0) continue;
    const Words words = random_words(sampling, Words::from(static_cast<uint32_t>(i)));
    // Noise reaches t where its v = 1 - e^(-e^-t), or less, and so only where v <= e^-t.
    const Vec reach = exp(scaled - Vec::all(best.score - 4 * kScoreDoubt));
    if (not_less(reach, fraction(words)) == 0) continue;
    float scores[Vec::kLanes];
    (scaled + gumbel_noise(words)).store(scores);
    for (int64_t lane = 0; lane < lanes; lane++) best.add(i + lane, scores[lane]);
  }
  int64_t chosen = -1;
  double most = 0;
  for (int64_t i = 0; i < best.count; i++) {
    const int64_t id = best.ids[i];
    const double scaled = (static_cast<double>(logits[id]) - static_cast<double>(top)) / sampling.temperature;
    const double score = scaled + gumbel_noise_of(sampling.seed, sampling.position, sampling.index, id);
    if (chosen < 0 || score > most) {
      chosen = id;
      most = score;
    }
  }
  return chosen;
}

// Scratch of a thread: changed logits, weights or scores, bins.
struct SamplingScratch {
  float* logits;
  float* scores;
  double* bins;

  SamplingScratch(std::byte* base, int64_t vocab) {
    const int64_t row = up_to(vocab, 16) * 4;
    logits = reinterpret_cast<float*>(base);
    scores = reinterpret_cast<float*>(base + row);
    bins = reinterpret_cast<double*>(base + 2 * row);
  }
};

int64_t sample_scratch(const void*, const CoreShape& shape, int32_t) {
  return 2 * up_to(shape.vocab, 16) * 4 + kMostDigits * 8;
}

// The output for a row's top logprobs.
Largest top_list(const CoreBatch& batch, int64_t row) {
  const int64_t first = row * CORE_TOP_LOGPROBS;
  const int64_t most = batch.sampling[row].top_logprobs;
  if (most == 0) return {nullptr, nullptr, 0};
  return {batch.top_ids + first, batch.top_logprobs + first, most};
}

// Write the requested logprobs: log-softmax of the unmodified logits at the token and at the most likely ids.
void fill_logprobs(const CoreSampling& sampling, const float* own, int64_t n, float own_top, CoreSampled& sampled,
                   const Largest& top) {
  if (sampling.logprobs == 0 && top.most == 0) return;
  const double total = static_cast<double>(own_top) + log_sum(own, n, own_top);
  if (sampling.logprobs != 0) sampled.logprob = static_cast<double>(own[sampled.token]) - total;
  if (top.most == 0) return;
  const int64_t found = find_largest(own, n, top);
  for (int64_t i = 0; i < found; i++) top.numbers[i] -= total;
}

CoreSampled sample_row(const CoreSampling& sampling, const float* own, int64_t n, const SamplingScratch& scratch,
                       const Largest& top_own) {
  const Summary summary = summary_of(own, n);
  if (!summary.finite) return {0, -1, 0};
  const float* logits = changed_logits(sampling.changes, own, n, scratch.logits);
  const float top = logits == own ? summary.top : largest_of(logits, n);
  if (top == kNothing) return {0, -1, 1};
  int64_t token;
  if (sampling.temperature == 0 || sampling.top_k == 1) {
    token = first_of(logits, n, top);
  } else {
    const float floor = lowest_left(sampling, logits, n, top, scratch.scores, scratch.bins);
    token = draw(sampling, logits, n, top, floor, scratch.scores);
  }
  CoreSampled sampled = {0, static_cast<int32_t>(token), 1};
  fill_logprobs(sampling, own, n, summary.top, sampled, top_own);
  return sampled;
}

int64_t sample_jobs(const void*, const Step& step) {
  return step.batch->num_logits;
}

void sample(const void* data, const Step& step, int64_t first, int64_t last, Thread& thread) {
  const auto& op = *static_cast<const CoreSample*>(data);
  const CoreBatch& batch = *step.batch;
  const int64_t vocab = op.logits.width;
  const SamplingScratch scratch(thread.scratch, vocab);
  for (int64_t row = first; row < last; row++) {
    batch.sampled[row] =
        sample_row(batch.sampling[row], step.row(op.logits, row), vocab, scratch, top_list(batch, row));
  }
}

const Kernel sample_kernel = {{{sample_jobs, sample}, {}}, nullptr, sample_scratch};
