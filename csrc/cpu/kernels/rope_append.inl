// Norms and RoPE of queries and keys, and storage of keys and values in their pages. A job is a row.

// out = head, its leading entries rotated; out may be head.
void rotate_head(const CoreRopeAppend& op, int64_t position, const float* head, float* out, int64_t head_dim) {
  const int64_t half = op.rotary_dim / 2;
  const float *cos = op.cos + position * half, *sin = op.sin + position * half;
  for (int64_t i = 0; i < half; i += Vec::kLanes) {
    const int64_t lanes = half - i < Vec::kLanes ? half - i : Vec::kLanes;
    const Vec c = Vec::load_first(cos + i, lanes), s = Vec::load_first(sin + i, lanes);
    const Vec a = Vec::load_first(head + i, lanes), b = Vec::load_first(head + half + i, lanes);
    (a * c - b * s).store_first(out + i, lanes);
    (b * c + a * s).store_first(out + half + i, lanes);
  }
  if (out == head) return;
  for (int64_t i = op.rotary_dim; i < head_dim; i++) out[i] = head[i];
}

// out = head, normalised if there is a weight, then rotated; out may be head.
void turn_head(const CoreRopeAppend& op, const float* weight, int64_t position, const float* head, float* out,
               int64_t head_dim) {
  if (weight == nullptr) return rotate_head(op, position, head, out, head_dim);
  normalize(head, add_and_square(head, nullptr, nullptr, head_dim), weight, op.eps, out, head_dim);
  rotate_head(op, position, out, out, head_dim);
}

// ---- codes ----

// The scale of n entries.
CodeScale scale_of(const float* entries, int64_t n, float most) {
  float low = entries[0], high = entries[0];
  for (int64_t i = 1; i < n; i++) {
    low = entries[i] < low ? entries[i] : low;
    high = entries[i] > high ? entries[i] : high;
  }
  return scale_between(low, high, most);
}

void put_codes(const CoreShape& shape, std::byte* page, int64_t token, const float* k, const float* v) {
  const auto kv = static_cast<CoreKv>(shape.kv);
  const int64_t dim = shape.head_dim, half = dim / 2;
  const CodePage codes(page, kv, dim);
  const float most = kv == CORE_KV_INT8 ? kMostInt8 : kMostUint4;
  const CodeScale key = scale_of(k, dim, most), value = scale_of(v, dim, most);
  codes.key_steps[token] = key.step;
  codes.key_lows[token] = key.low;
  codes.value_steps[token] = value.step;
  codes.value_lows[token] = value.low;
  if (kv == CORE_KV_INT8) {
    for (int64_t d = 0; d < dim; d++) codes.keys[d * kPageTokens + token] = nearest_code(k[d], key, most);
    for (int64_t d = 0; d < dim; d++) codes.values[token * dim + d] = nearest_code(v[d], value, most);
    return;
  }
  for (int64_t i = 0; i < half; i++) {
    const int key_pair = nearest_code(k[2 * i], key, most) | nearest_code(k[2 * i + 1], key, most) << 4;
    const int value_pair = nearest_code(v[i], value, most) | nearest_code(v[i + half], value, most) << 4;
    codes.keys[i * kPageTokens + token] = static_cast<uint8_t>(key_pair);
    codes.values[token * half + i] = static_cast<uint8_t>(value_pair);
  }
}

// ---- numbers ----

#ifdef __AVX512F__

// In pairs: a page's keys are [head_dim / 2][16][2], its values [8][head_dim][2].
void put_pairs_of_token(const CoreShape& shape, std::byte* page, int64_t token, const float* k, const float* v) {
  const int64_t dim = shape.head_dim;
  auto* values = reinterpret_cast<BFloat16*>(page) + (kPageTokens + token / 2 * 2) * dim;
  for (int64_t d = 0; d < dim; d += 16) {
    BFloat16 key[16];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(key), bfloat16_of(_mm512_loadu_ps(k + d)));
#pragma GCC unroll 8
    for (int64_t i = 0; i < 16; i += 2) {
      __builtin_memcpy(page + ((d + i) / 2 * kPageTokens + token) * 4, key + i, 4);
    }
    const __m512i value = _mm512_cvtepu16_epi32(bfloat16_of(_mm512_loadu_ps(v + d)));
    const __m512i placed = token % 2 == 0 ? value : _mm512_slli_epi32(value, 16);
    _mm512_mask_storeu_epi16(values + 2 * d, token % 2 == 0 ? 0x55555555u : 0xaaaaaaaau, placed);
  }
}

#endif

template <typename T>
void put_numbers(const CoreShape& shape, std::byte* page, int64_t token, const float* k, const float* v) {
  constexpr int64_t kTogether = sizeof(T) == 2 ? 2 : 1;
  const int64_t dim = shape.head_dim;
  auto* keys = reinterpret_cast<T*>(page);
  T* values = keys + kPageTokens * dim;
  for (int64_t d = 0; d < dim; d++) {
    keys[(d / kTogether * kPageTokens + token) * kTogether + d % kTogether] = from_float<T>(k[d]);
  }
  for (int64_t d = 0; d < dim; d++) {
    values[(token / kTogether * dim + d) * kTogether + token % kTogether] = from_float<T>(v[d]);
  }
}

void put_token(const CoreShape& shape, std::byte* page, int64_t token, const float* k, const float* v) {
  switch (shape.kv) {
    case CORE_KV_FLOAT32:
      return put_numbers<float>(shape, page, token, k, v);
    case CORE_KV_BFLOAT16:
#ifdef __AVX512F__
      return put_pairs_of_token(shape, page, token, k, v);
#endif
      return put_numbers<BFloat16>(shape, page, token, k, v);
    default:
      return put_codes(shape, page, token, k, v);
  }
}

// scratch: for two heads.
void rope_append_row(const CoreRopeAppend& op, const Step& step, int64_t row, float* scratch) {
  const CoreShape& shape = *step.shape;
  const bool rotates = shape.kv == CORE_KV_UINT4;
  const int64_t dim = shape.head_dim, position = step.positions[row];
  const float *q = step.row(op.q, row), *k = step.row(op.k, row), *v = step.row(op.v, row);
  float* q_out = step.row(op.q_out, row);
  for (int64_t head = 0; head < shape.heads; head++) {
    float* out = q_out + head * dim;
    turn_head(op, op.q_norm, position, q + head * dim, out, dim);
    if (op.scales != nullptr) {
      for (int64_t i = 0; i < dim; i++) out[i] *= op.scales[position];
    }
    if (rotates) hadamard(out, hadamard_factor(dim), out, dim);
  }
  const CoreSequence& sequence = step.batch->sequences[step.sequence[row]];
  const int64_t block = sequence.blocks[position / shape.block_size], slot = position % shape.block_size;
  for (int64_t head = 0; head < shape.kv_heads; head++) {
    const float* value = v + head * dim;
    turn_head(op, op.k_norm, position, k + head * dim, scratch, dim);
    if (rotates) {
      hadamard(scratch, 1.0f, scratch, dim);
      hadamard(value, 1.0f, scratch + dim, dim);
      value = scratch + dim;
    }
    put_token(shape, step.kv.page(op.layer, block, head, slot), slot % kPageTokens, scratch, value);
  }
}

int64_t rope_append_jobs(const void*, const Step& step) {
  return step.batch->num_tokens;
}

void rope_append(const void* data, const Step& step, int64_t first, int64_t last, Thread& thread) {
  for (int64_t row = first; row < last; row++) {
    rope_append_row(*static_cast<const CoreRopeAppend*>(data), step, row, reinterpret_cast<float*>(thread.scratch));
  }
}

int64_t rope_append_scratch(const void*, const CoreShape& shape, int32_t) {
  return 2 * shape.head_dim * 4;
}

const Kernel rope_append_kernel = {{{rope_append_jobs, rope_append}, {}}, nullptr, rope_append_scratch};
