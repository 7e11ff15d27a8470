// Thresholds of top-k, top-p and min-p without sorting: histograms over the bits of the logits, from the top down.

constexpr int kDigitBits[] = {11, 11, 10};
constexpr int64_t kMostDigits = 1 << 11;

// Numbers ordered by their keys, each with a weight. `weights` null: all weights are 1.
struct Weighted {
  const float* numbers;
  const float* weights;
  int64_t count;
  float floor;  // smaller numbers do not count
};

// Return which of a register of numbers have the known leading bits of a key.
uint32_t begin_with(Vec numbers, uint32_t key, uint32_t known) {
  const uint32_t bits = (key >> 31 != 0 ? key & 0x7fffffffu : ~key) & known;
  return equal_bits(numbers + Vec::zero(), known, bits);
}

// Add the weights of numbers whose keys start with the known bits of `prefix` to the bins of their next digits.
void fill_bins(const Weighted& all, uint32_t prefix, uint32_t known, int shift, int64_t digits, double* bins) {
  for (int64_t digit = 0; digit < digits; digit++) bins[digit] = 0;
  for (int64_t i = 0; i < all.count; i += Vec::kLanes) {
    const int64_t lanes = all.count - i < Vec::kLanes ? all.count - i : Vec::kLanes;
    const Vec numbers = Vec::load_first(all.numbers + i, lanes);
    uint32_t left = begin_with(numbers, prefix, known) & not_less(numbers, Vec::all(all.floor));
    for (left &= ~uint32_t{0} >> (32 - lanes); left != 0; left &= left - 1) {
      const int64_t at = i + __builtin_ctz(left);
      const uint32_t digit = key_of(all.numbers[at]) >> shift & static_cast<uint32_t>(digits - 1);
      bins[digit] += all.weights == nullptr ? 1.0 : all.weights[at];
    }
  }
}

// Return the largest number t such that the weights of numbers >= t sum to at least `wanted`, or if all weights do not,
// the smallest number that counts. bins: scratch, [kMostDigits].
float threshold(const Weighted& all, double wanted, double* bins) {
  uint32_t prefix = 0;
  int shift = 32;
  double above = 0;
  for (const int bits : kDigitBits) {
    const uint32_t known = shift == 32 ? 0 : ~uint32_t{0} << shift;
    shift -= bits;
    const int64_t digits = int64_t{1} << bits;
    fill_bins(all, prefix, known, shift, digits, bins);
    int64_t lowest = -1, chosen = -1;
    for (int64_t digit = digits - 1; digit >= 0 && chosen < 0; digit--) {
      if (bins[digit] == 0) continue;
      lowest = digit;
      if (above + bins[digit] >= wanted) {
        chosen = digit;
      } else {
        above += bins[digit];
      }
    }
    if (chosen < 0) {  // not reached, by rounding or because all weights are less: the lowest non-empty bin
      chosen = lowest < 0 ? 0 : lowest;
      above -= lowest < 0 ? 0 : bins[lowest];
    }
    prefix |= static_cast<uint32_t>(chosen) << shift;
  }
  return number_of(prefix);
}

// exp((logit - top) / temperature) of every logit, and their sum over those not below `floor`.
double fill_weights(const float* logits, int64_t n, float top, double temperature, float floor, float* weights) {
  const Vec highest = Vec::all(top), rate = Vec::all(rate_of(temperature));
  const Vec lowest = Vec::all(floor);
  constexpr int64_t kBlock = 16 * Vec::kLanes;
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = begin + kBlock < n ? begin + kBlock : n;
    Vec part = Vec::zero();
    for (int64_t i = begin; i < end; i += Vec::kLanes) {
      const int64_t lanes = end - i < Vec::kLanes ? end - i : Vec::kLanes;
      const Vec x = Vec::load_first(logits + i, lanes);
      where_less(x, lowest, Vec::zero(), exp((x - highest) * rate)).store_first(weights + i, lanes);
      part = part + Vec::load_first(weights + i, lanes);
    }
    total += static_cast<double>(sum(part));
  }
  return total;
}

// Return the lowest logit that top-k, top-p and min-p keep; top is the highest. weights, bins: scratch.
float lowest_left(const CoreSampling& sampling, const float* logits, int64_t n, float top, float* weights,
                  double* bins) {
  // Masked ids are -inf and never kept.
  float floor = -__FLT_MAX__;
  if (sampling.top_k > 0 && sampling.top_k < n) {
    floor = threshold({logits, nullptr, n, floor}, sampling.top_k, bins);
  }
  if (sampling.top_p < 1) {
    const double total = fill_weights(logits, n, top, sampling.temperature, floor, weights);
    const float edge = threshold({logits, weights, n, floor}, sampling.top_p * total, bins);
    floor = edge > floor ? edge : floor;
  }
  if (sampling.min_p > 0) {
    const float edge = lowest_of_min_p(top, sampling.temperature, sampling.min_p);
    floor = edge > floor ? edge : floor;
  }
  return floor < top ? floor : top;
}
