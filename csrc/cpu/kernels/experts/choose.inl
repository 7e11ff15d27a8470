// Mixtures of experts: which experts a row takes, and their weights.

// Where what is chosen for a row is written.
struct Choice {
  float* compared;   // [count] what experts are chosen by; null: the scores
  float* by_group;   // [groups] what groups are chosen by; null: all are allowed
  int32_t* experts;  // [used]
  float* weights;    // [used]
};

// True if a row's experts are of some groups alone.
bool is_limited(const CoreExperts& op) {
  return op.groups_used < op.groups;
}

// True if score i comes after score `last`: it is lower, or equal and stands behind it. Of -1, every one does.
bool comes_after(const float* scores, int32_t i, int32_t last) {
  return last < 0 || scores[i] < scores[last] || (scores[i] == scores[last] && i > last);
}

// Return the first of the highest scores that come after score `last` in this order; -1: there is none.
int32_t next_best(const float* scores, int32_t count, int32_t last) {
  int32_t best = -1;
  for (int32_t i = 0; i < count; i++) {
    if (comes_after(scores, i, last) && (best < 0 || scores[i] > scores[best])) best = i;
  }
  return best;
}

// Return the weight of the i-th expert of a row; see CoreExperts.mixer_threshold.
float mixer_weight(const CoreExperts& op, const float* scores, const int32_t* chosen, int32_t i) {
  const float most = scores[chosen[i]];
  float sum = 0;
  for (int32_t expert = 0; expert < op.count; expert++) {
    bool before = false;
    for (int32_t j = 0; j < i; j++) before |= chosen[j] == expert;
    const float size = __builtin_fabsf(scores[expert]), factor = size > most ? size : most;
    const bool far = (most - scores[expert]) / factor > op.mixer_threshold;
    if (!before && !far) sum += __builtin_expf(scores[expert] - most);
  }
  return 1 / sum;
}

float sigmoid_of(float score) {
  return 1 / (1 + __builtin_expf(-score));
}

// Return the sum of e^(score - most) of all experts.
float sum_of_all(const CoreExperts& op, const float* scores, float most) {
  float sum = 0;
  for (int32_t i = 0; i < op.count; i++) sum += __builtin_expf(scores[i] - most);
  return sum;
}

// Write what a row's experts are chosen by, without regard to groups.
void compare(const CoreExperts& op, const float* scores, float most, float* compared) {
  if (op.sigmoid == 0 && op.correction == nullptr) {
    __builtin_memcpy(compared, scores, static_cast<size_t>(op.count) * sizeof(float));
    return;
  }
  const float sum = op.sigmoid != 0 ? 1 : sum_of_all(op, scores, most);
  for (int32_t i = 0; i < op.count; i++) {
    compared[i] = op.sigmoid != 0 ? sigmoid_of(scores[i]) : __builtin_expf(scores[i] - most) / sum;
    if (op.correction != nullptr) compared[i] += op.correction[i];
  }
}

// Return what a group is chosen by, from what its experts are.
float score_of_group(const CoreExperts& op, const float* compared) {
  const int32_t size = op.count / op.groups, first = next_best(compared, size, -1);
  const int32_t second = op.correction == nullptr ? -1 : next_best(compared, size, first);
  return second < 0 ? compared[first] : compared[first] + compared[second];
}

// Leave the experts of the groups with the highest scores: what others are chosen by becomes lower than any number.
void leave_groups(const CoreExperts& op, float* compared, float* by_group) {
  const int32_t size = op.count / op.groups;
  for (int32_t i = 0; i < op.groups; i++) by_group[i] = score_of_group(op, compared + i * size);
  int32_t last = -1;
  for (int32_t i = 0; i < op.groups_used; i++) {
    const int32_t next = next_best(by_group, op.groups, last);
    if (next < 0) break;  // Others are no numbers.
    last = next;
  }
  for (int32_t i = 0; i < op.count; i++) {
    const int32_t group = i / size;  // One that is no number comes neither before the last one nor after it.
    if (group != last && !comes_after(by_group, last, group)) compared[i] = -__builtin_inff();
  }
}

// Choose the highest of what is compared. Of values that are no numbers, any experts.
void choose(const CoreExperts& op, const float* compared, int32_t* chosen) {
  for (int32_t i = 0; i < op.used; i++) {
    const int32_t best = next_best(compared, op.count, i == 0 ? -1 : chosen[i - 1]);
    chosen[i] = best < 0 ? i : best;
  }
}

// Write the weights of a row's experts but for their sum, and return that.
float weigh_chosen(const CoreExperts& op, const float* scores, float most, const int32_t* chosen, float* weights) {
  float sum = 0;
  for (int32_t i = 0; i < op.used; i++) {
    const float score = scores[chosen[i]];
    sum += weights[i] = op.sigmoid != 0 ? sigmoid_of(score) : __builtin_expf(score - most);
  }
  if (op.sigmoid != 0) return op.normalised != 0 ? sum + 1e-20f : 1;  // All may be 0.
  if (op.normalised != 0 && op.correction == nullptr) return sum;
  const float total = sum_of_all(op, scores, most), least = 1e-12f * total;
  return op.normalised == 0 ? total : (sum > least ? sum : least);
}

bool are_numbers(const float* scores, int32_t count) {
  bool all = true;
  for (int32_t i = 0; i < count; i++) all &= scores[i] == scores[i];
  return all;
}

// Choose the experts of a row, and their weights.
void choose_for_row(const CoreExperts& op, const float* scores, const Choice& to) {
  if (!are_numbers(scores, op.count)) {
    for (int32_t i = 0; i < op.used; i++) {
      to.experts[i] = i;
      to.weights[i] = __builtin_nanf("");
    }
    return;
  }
  const float most = scores[next_best(scores, op.count, -1)];
  if (to.compared != nullptr) compare(op, scores, most, to.compared);
  if (to.by_group != nullptr) leave_groups(op, to.compared, to.by_group);
  choose(op, to.compared != nullptr ? to.compared : scores, to.experts);
  if (op.mixer_threshold > 0) {
    for (int32_t i = 0; i < op.used; i++) to.weights[i] = op.scale * mixer_weight(op, scores, to.experts, i);
    return;
  }
  const float sum = weigh_chosen(op, scores, most, to.experts, to.weights);
  for (int32_t i = 0; i < op.used; i++) to.weights[i] = to.weights[i] / sum * op.scale;
}
