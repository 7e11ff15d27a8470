// Sampling by the Gumbel-max trick: the id with the largest score, its scaled logit plus its Gumbel noise.
#pragma once

#include "cuda/sampling/cuts.h"

namespace core {

// -log(-log(1 - v)) for v = (word + 0.5) / 2^32, in float32. Where v is near 1, 1 - v is taken from the word itself.
__device__ inline float gumbel_noise(uint32_t word) {
  const float v = fmaf(static_cast<float>(word), 0x1p-32f, 0x1p-33f);
  const float rest = fmaf(static_cast<float>(~word), 0x1p-32f, 0x1p-33f);
  return -logf(v < 0.5f ? -log1pf(-v) : -logf(rest));
}

// The scores of a row's ids.
struct Scores {
  uint64_t seed;
  double temperature;
  float top;
  float rate;
  int32_t position;
  int32_t index;

  __device__ Scores(const CoreSampling& sampling, float top)
      : seed(sampling.seed),
        temperature(sampling.temperature),
        top(top),
        rate(rate_of(sampling.temperature)),
        position(sampling.position),
        index(sampling.index) {}

  __device__ float scaled(float logit) const { return (logit - top) * rate; }

  __device__ float noise(int64_t id) const {
    const PhiloxWords counter = {
        {static_cast<uint32_t>(position), static_cast<uint32_t>(id), static_cast<uint32_t>(index), 0}};
    return gumbel_noise(philox(counter, seed).word[0]);
  }

  __device__ double exact(int64_t id, float logit) const {
    const double wide = (static_cast<double>(logit) - static_cast<double>(top)) / temperature;
    return wide + gumbel_noise_of(seed, position, index, id);
  }
};

// Call use(id, logit) for this thread's share of the logits that a cut keeps.
template <typename T, typename Use>
__device__ void for_each_left(const Logits<T>& logits, const SampleShared& shared, Cut cut, Use use) {
  const auto left = [&](int64_t id, float logit) {
    if (key_of(logit) >= cut.floor) use(id, logit);
  };
  if (cut.listed) {
    for_each(shared, left);
  } else {
    for_each(logits, left);
  }
}

// This thread's best scores in float32.
struct BestScores {
  float best = kNothing;
  float second = kNothing;
  int32_t id = -1;
  float logit = 0.0f;

  __device__ void add(int64_t new_id, float new_logit, float score) {
    second = fmaxf(second, fminf(best, score));
    if (!(score > best)) return;
    best = score;
    id = static_cast<int32_t>(new_id);
    logit = new_logit;
  }
};

// The best score in float64, with the lowest id that has it.
struct Winner {
  double score = -INFINITY;
  int32_t id = INT32_MAX;

  __device__ void add(int64_t new_id, double new_score) {
    if (new_score < score || (new_score == score && new_id > id)) return;
    score = new_score;
    id = static_cast<int32_t>(new_id);
  }

  __device__ int32_t of_block() const {
    const double best =
        block_reduce(score, -static_cast<double>(INFINITY), [](double a, double b) { return fmax(a, b); });
    return block_reduce(score == best ? id : INT32_MAX, INT32_MAX, [](int32_t a, int32_t b) { return min(a, b); });
  }
};

// Return the id with the largest score, ties by lowest id. Scores too close for float32 are compared in float64.
template <typename T>
__device__ int32_t draw(const Logits<T>& logits, const CoreSampling& sampling, const Peak& peak, SampleShared& shared) {
  const Cut cut = cut_of(logits, sampling, peak, shared);
  const Scores scores(sampling, peak.logit);
  const float least = scores.noise(peak.id);  // the score of the most likely id
  BestScores mine;
  for_each_left(logits, shared, cut, [&](int64_t id, float logit) {
    const float scaled = scores.scaled(logit);
    if (scaled + kMostNoise < fmaxf(least, mine.best) - 4 * kScoreDoubt) return;
    mine.add(id, logit, scaled + scores.noise(id));
  });
  const float doubtful =
      block_reduce(mine.best, kNothing, [](float a, float b) { return fmaxf(a, b); }) - 2 * kScoreDoubt;
  Winner winner;
  if (mine.best >= doubtful) winner.add(mine.id, scores.exact(mine.id, mine.logit));
  if (mine.second >= doubtful) {
    for_each_left(logits, shared, cut, [&](int64_t id, float logit) {
      const float scaled = scores.scaled(logit);
      if (scaled + kMostNoise < doubtful || scaled + scores.noise(id) < doubtful) return;
      winner.add(id, scores.exact(id, logit));
    });
  }
  return winner.of_block();
}

}  // namespace core
