// The formulas of sampling, one number at a time: the same in every library, so that the same logits give the same
// tokens.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/both.h"
#include "common/philox.h"

namespace core {

constexpr float kLargestFloat = 0x1.fffffep+127f;

// Round to float32, clamped to finite values: an overflow must neither favour nor exclude an id.
CORE_BOTH float finite_float(double x) {
  constexpr double kMost = kLargestFloat;
  return static_cast<float>(x < -kMost ? -kMost : x > kMost ? kMost : x);
}

// Return a logit after the repetition penalty, less the other penalties.
CORE_BOTH float penalized_logit(float logit, float repetition, double penalty) {
  const auto wide = static_cast<double>(logit);
  const double repeated = finite_float(logit < 0 ? wide * repetition : wide / repetition);
  return finite_float(repeated - penalty);
}

// Return an integer key with the order of floats; -0 and 0 have the same key.
CORE_BOTH uint32_t key_of(float x) {
  const float unsigned_zero = x + 0.0f;
  uint32_t bits;
  memcpy(&bits, &unsigned_zero, sizeof bits);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

CORE_BOTH float number_of(uint32_t key) {
  const uint32_t bits = key >> 31 != 0 ? key & 0x7fffffffu : ~key;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// Return the factor of (logit - top). Finite, so that it keeps the top's 0 at 0 even for the smallest temperature.
CORE_BOTH float rate_of(double temperature) {
  const double rate = 1.0 / temperature;
  return rate < kLargestFloat ? static_cast<float>(rate) : kLargestFloat;
}

// Return the lowest logit that min-p keeps, top + temperature * log(min_p) in float64, rounded up to a float.
CORE_BOTH float lowest_of_min_p(float top, double temperature, double min_p) {
  const double least = static_cast<double>(top) + temperature * ::log(min_p);
  const auto rounded = static_cast<float>(least);
  return rounded < least ? number_of(key_of(rounded) + 1) : rounded;
}

// Return the Gumbel noise of an id in float64.
CORE_BOTH double gumbel_noise_of(uint64_t seed, int32_t position, int32_t index, int64_t id) {
  const PhiloxWords counter = {
      {static_cast<uint32_t>(position), static_cast<uint32_t>(id), static_cast<uint32_t>(index), 0}};
  const double v = (static_cast<double>(philox(counter, seed).word[0]) + 0.5) * 0x1p-32;
  return -::log(-::log1p(-v));
}

// The largest noise of any random word: -log(-log1p(-2^-33)), rounded up.
constexpr float kMostNoise = 22.88f;
// Bound on the difference of scores in float32 from those in float64.
constexpr float kScoreDoubt = 1e-3f;

}  // namespace core
