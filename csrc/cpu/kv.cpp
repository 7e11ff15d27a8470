#include "cpu/kv.h"

#include "common/hadamard.h"
#include "common/status.h"
#include "cpu/number.h"
#include "cpu/program/program.h"

namespace core {
namespace {

// Return entry d of the key or value of a token in the layout of kv.h.
float entry(const std::byte* page, CoreKv kv, int64_t dim, bool value, int64_t token, int64_t d) {
  if (kv == CORE_KV_FLOAT32) {
    const auto* numbers = reinterpret_cast<const float*>(page) + (value ? kPageTokens * dim : 0);
    return value ? numbers[token * dim + d] : numbers[d * kPageTokens + token];
  }
  if (kv == CORE_KV_BFLOAT16) {
    const auto* numbers = reinterpret_cast<const BFloat16*>(page) + (value ? kPageTokens * dim : 0);
    const int64_t place = value ? (token / 2 * dim + d) * 2 + token % 2 : (d / 2 * kPageTokens + token) * 2 + d % 2;
    return to_float(numbers[place]);
  }
  const CodePage codes(const_cast<std::byte*>(page), kv, dim);
  const float step = (value ? codes.value_steps : codes.key_steps)[token];
  const float low = (value ? codes.value_lows : codes.key_lows)[token];
  int code;
  if (kv == CORE_KV_INT8) {
    code = value ? codes.values[token * dim + d] : codes.keys[d * kPageTokens + token];
  } else if (value) {
    code = codes.values[token * (dim / 2) + d % (dim / 2)] >> (d < dim / 2 ? 0 : 4) & 15;
  } else {
    code = codes.keys[d / 2 * kPageTokens + token] >> (d % 2 * 4) & 15;
  }
  return low + step * static_cast<float>(code);
}

// Invert the Hadamard rotation of a head.
void gather_back(float* head, int64_t dim) {
  const int64_t block = hadamard_block(dim);
  for (int64_t apart = 1; apart < block; apart *= 2) {
    for (int64_t d = 0; d < dim; d++) {
      if (d & apart) continue;
      const float a = head[d], b = head[d + apart];
      head[d] = a + b;
      head[d + apart] = a - b;
    }
  }
  for (int64_t d = 0; d < dim; d++) head[d] /= static_cast<float>(block);
}

}  // namespace

int64_t page_bytes(CoreKv kv, int32_t head_dim) {
  constexpr int64_t kScales = 2 * 2 * kPageTokens * sizeof(float);
  const int64_t entries = int64_t{2} * kPageTokens * head_dim;
  switch (kv) {
    case CORE_KV_FLOAT32:
      return entries * 4;
    case CORE_KV_BFLOAT16:
      return entries * 2;
    case CORE_KV_INT8:
      return entries + kScales;
    default:
      return entries / 2 + kScales;
  }
}

}  // namespace core

CoreStatus core_program_kv(const CoreProgram* program, int32_t layer, int32_t values, int32_t block, int32_t slot,
                           float* out) {
  if (program == nullptr || out == nullptr) return core::status(CORE_NULL_POINTER, 0);
  const CoreShape& shape = program->shape;
  if (program->kv.base == nullptr) return core::status(CORE_NOT_BOUND, 0);
  const bool there = layer >= 0 && layer < shape.layers && block >= 0 && block < program->kv.num_blocks && slot >= 0 &&
                     slot < shape.block_size;
  if (!there) return core::status(CORE_BAD_SHAPE, 0);
  for (int32_t head = 0; head < shape.kv_heads; head++) {
    const std::byte* page = program->kv.page(layer, block, head, slot);
    const auto kv = static_cast<CoreKv>(shape.kv);
    for (int32_t d = 0; d < shape.head_dim; d++) {
      out[d] = core::entry(page, kv, shape.head_dim, values != 0, slot % core::kPageTokens, d);
    }
    if (kv == CORE_KV_UINT4) core::gather_back(out, shape.head_dim);
    out += shape.head_dim;
  }
  return CORE_OK;
}
