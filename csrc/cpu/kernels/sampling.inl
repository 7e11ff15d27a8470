// Drawing a token from a row of logits: own logits, masks, cuts, draw, log-probability. A job is a row.

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

int64_t first_of(const float* x, int64_t n, float value) {
  for (int64_t i = 0; i < n; i++) {
    if (x[i] == value) return i;
  }
  return -1;
}

// log(sum of e^(x - top)), summed in float64.
double log_sum(const float* x, int64_t n, float top) {
  double total = 0;
  for (int64_t i = 0; i < n; i += Vec::kLanes) {
    const int64_t lanes = n - i < Vec::kLanes ? n - i : Vec::kLanes;
    const Vec e = exp(Vec::load_first(x + i, lanes) - Vec::all(top));
    float part[Vec::kLanes];
    e.store(part);
    if (lanes == Vec::kLanes) {
      total += static_cast<double>(sum(e));
    } else {
      for (int64_t lane = 0; lane < lanes; lane++) total += part[lane];
    }
  }
  return __builtin_log(total);
}

// No word gives more noise: -log(-log1p(-2^-33)), rounded up.
constexpr float kMostNoise = 22.88f;
// Scores in float32 are this close to those in float64.
constexpr float kScoreDoubt = 1e-3f;

// The id, not below floor, with the largest (logit - top) / temperature + noise; of equal ones the lowest. Decided in
// float64 among those that float32 leaves in doubt. scores: room for n.
int64_t draw(const CoreSampling& sampling, const float* logits, int64_t n, float top, float floor, float* scores) {
  const Vec highest = Vec::all(top), rate = Vec::all(static_cast<float>(1.0 / sampling.temperature));
  const Vec lowest = Vec::all(floor), nothing = Vec::all(kNothing);
  float best = kNothing;
  for (int64_t i = 0; i < n; i += Vec::kLanes) {
    const int64_t lanes = n - i < Vec::kLanes ? n - i : Vec::kLanes;
    Vec::all(kNothing).store_first(scores + i, lanes);
    const Vec x = Vec::load_first(logits + i, lanes), scaled = (x - highest) * rate;
    const Vec hopeful = where_less(scaled, Vec::all(best - kMostNoise - kScoreDoubt), nothing, scaled);
    const Vec left = where_less(x, lowest, nothing, hopeful);
    left.store_first(scores + i, lanes);
    const Vec kept = lanes == Vec::kLanes ? left : Vec::load_first(scores + i, lanes);
    if (not_less(kept, Vec::all(-__FLT_MAX__)) == 0) continue;
    const Vec score = left + gumbel_noise(random_words(sampling, Words::from(static_cast<uint32_t>(i))));
    score.store_first(scores + i, lanes);
    for (int64_t lane = 0; lane < lanes; lane++) best = scores[i + lane] > best ? scores[i + lane] : best;
  }
  int64_t chosen = -1;
  double most = 0;
  for (int64_t i = 0; i < n; i++) {
    if (!(scores[i] >= best - 2 * kScoreDoubt)) continue;
    const double scaled = (static_cast<double>(logits[i]) - static_cast<double>(top)) / sampling.temperature;
    const double score = scaled + gumbel_noise_of(sampling, i);
    if (chosen < 0 || score > most) {
      chosen = i;
      most = score;
    }
  }
  return chosen;
}

// The room of a thread: masked logits, weights or scores, bins.
struct SamplingRoom {
  float* logits;
  float* scores;
  double* bins;

  SamplingRoom(std::byte* base, int64_t vocab) {
    const int64_t row = up_to(vocab, 16) * 4;
    logits = reinterpret_cast<float*>(base);
    scores = reinterpret_cast<float*>(base + row);
    bins = reinterpret_cast<double*>(base + 2 * row);
  }
};

int64_t sample_room(const void*, const CoreShape& shape, int32_t) {
  return 2 * up_to(shape.vocab, 16) * 4 + kMostDigits * 8;
}

// The logits with masked ids at -inf: those of the model where nothing is masked.
const float* masked_logits(const CoreSampling& sampling, const float* own, int64_t n, float* room) {
  if (sampling.masked_count == 0) return own;
  __builtin_memcpy(room, own, static_cast<size_t>(n) * sizeof(float));
  for (int32_t i = 0; i < sampling.masked_count; i++) {
    const int32_t id = sampling.masked[i];
    if (id >= 0 && id < n) room[id] = kNothing;
  }
  return room;
}

CoreSampled sample_row(const CoreSampling& sampling, const float* own, int64_t n, const SamplingRoom& room) {
  const Summary summary = summary_of(own, n);
  if (!summary.finite) return {0, -1, 0};
  const float* logits = masked_logits(sampling, own, n, room.logits);
  float top = summary.top;
  if (logits != own) {
    top = kNothing;
    for (int64_t i = 0; i < n; i++) top = logits[i] > top ? logits[i] : top;
  }
  if (top == kNothing) return {0, -1, 1};
  int64_t token;
  if (sampling.temperature == 0 || sampling.top_k == 1) {
    token = first_of(logits, n, top);
  } else {
    const float floor = lowest_left(sampling, logits, n, top, room.scores, room.bins);
    token = draw(sampling, logits, n, top, floor, room.scores);
  }
  CoreSampled sampled = {0, static_cast<int32_t>(token), 1};
  if (sampling.logprob != 0) {
    const double own_top = summary.top;
    sampled.logprob = static_cast<double>(own[token]) - own_top - log_sum(own, n, summary.top);
  }
  return sampled;
}

int64_t sample_jobs(const void*, const Step& step) {
  return step.batch->num_logits;
}

void sample(const void* data, const Step& step, int64_t first, int64_t last, Thread& thread) {
  const auto& op = *static_cast<const CoreSample*>(data);
  const int64_t vocab = op.logits.width;
  const SamplingRoom room(thread.room, vocab);
  for (int64_t row = first; row < last; row++) {
    const float* logits = step.row(op.logits, row);
    step.batch->sampled[row] = sample_row(step.batch->sampling[row], logits, vocab, room);
  }
}

const Kernel kSample = {{{sample_jobs, sample}, {}}, nullptr, sample_room};
