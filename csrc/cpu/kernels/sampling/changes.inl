// Changes of logits by requests (CoreLogitChanges), and top logprobs.

// Copy the logits of allowed ids; the others become -inf.
void copy_allowed(const CoreLogitChanges& changes, const float* own, int64_t n, float* logits) {
  for (int64_t first = 0; first < n; first += 32) {
    const int64_t count = n - first < 32 ? n - first : 32;
    const uint32_t word = first / 32 < changes.allowed_words ? changes.allowed[first / 32] : 0;
    for (int64_t bit = 0; bit < count; bit++) {
      logits[first + bit] = (word >> bit & 1) != 0 ? own[first + bit] : kNothing;
    }
  }
}

// Apply a change to the logits of ids that may still be sampled.
template <typename Change>
[[gnu::always_inline]] inline void change_each(const int32_t* ids, int32_t count, int64_t n, float* logits,
                                               Change change) {
  for (int32_t i = 0; i < count; i++) {
    const int64_t id = ids[i];
    if (id >= 0 && id < n && logits[id] != kNothing) logits[id] = change(logits[id], i);
  }
}

// Return the changed logits, written to `scratch`, or without changes the original ones. Ids that may
// not be sampled become -inf.
const float* changed_logits(const CoreLogitChanges* changes, const float* own, int64_t n, float* scratch) {
  if (changes == nullptr) return own;
  if (changes->allowed != nullptr) {
    copy_allowed(*changes, own, n, scratch);
  } else {
    __builtin_memcpy(scratch, own, static_cast<size_t>(n) * sizeof(float));
  }
  change_each(changes->penalized, changes->penalized_count, n, scratch,
              [&](float x, int32_t i) { return penalized_logit(x, changes->repetition, changes->penalties[i]); });
  change_each(changes->biased, changes->biased_count, n, scratch,
              [&](float x, int32_t i) { return finite_float(x + changes->biases[i]); });
  change_each(changes->masked, changes->masked_count, n, scratch, [](float, int32_t) { return kNothing; });
  return scratch;
}

// The largest of n numbers, of which none is NaN.
float largest_of(const float* x, int64_t n) {
  Vec most = Vec::all(kNothing);
  int64_t i = 0;
  for (; i + Vec::kLanes <= n; i += Vec::kLanes) most = max(most, Vec::load(x + i));
  for (; i < n; i++) most = max(most, Vec::all(x[i]));
  return largest(most);
}

// The largest numbers, with their indices.
struct Largest {
  int32_t* ids;
  double* numbers;  // in descending order, ties by lowest index
  int64_t most;
  int64_t count = 0;

  void add(int64_t id, double number) {
    int64_t place = count < most ? count++ : most - 1;
    for (; place > 0 && numbers[place - 1] < number; place--) {
      ids[place] = ids[place - 1];
      numbers[place] = numbers[place - 1];
    }
    ids[place] = static_cast<int32_t>(id);
    numbers[place] = number;
  }

  float least() const { return count < most ? -__FLT_MAX__ : static_cast<float>(numbers[most - 1]); }
};

// Find the `most` largest of n finite numbers, or all.
int64_t find_largest(const float* x, int64_t n, Largest largest) {
  for (int64_t i = 0; i < n; i += Vec::kLanes) {
    const int64_t lanes = n - i < Vec::kLanes ? n - i : Vec::kLanes;
    uint32_t left = not_less(Vec::load_first(x + i, lanes), Vec::all(largest.least()));
    for (left &= ~uint32_t{0} >> (32 - lanes); left != 0; left &= left - 1) {
      const int64_t at = i + __builtin_ctz(left);
      if (largest.count < largest.most || x[at] > largest.least()) largest.add(at, x[at]);
    }
  }
  return largest.count;
}
