// Layout of keys and values. A block holds, for each KV head, pages of 16 tokens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core_program.h"

namespace core {

constexpr int32_t kPageTokens = 16;

// Return the bytes of a page of one head: keys, then values; the dimension of 16 is the token.
//   FLOAT32   keys [head_dim][16], values [16][head_dim]
//   BFLOAT16  keys [head_dim / 2][16][2], values [8][head_dim][2]: products take pairs along the summed dimension
//   INT8      keys: codes [head_dim][16], then floats steps [16] and lows [16]; values: codes [16][head_dim], likewise
//   UINT4     keys: codes [head_dim / 2][16], a byte has entries 2i and 2i + 1;
//             values: codes [16][head_dim / 2], a byte has entries i and i + head_dim / 2
// In every byte of UINT4 the first entry lies in the low half, and entries are those of Hadamard rotated heads
// (common/hadamard.h). An entry is low + step * code of its token.
int64_t page_bytes(CoreKv kv, int32_t head_dim);

// The parts of a page of a quantized format.
struct CodePage {
  uint8_t* keys;
  float* key_steps;
  float* key_lows;
  uint8_t* values;
  float* value_steps;
  float* value_lows;

  [[gnu::always_inline]] CodePage(std::byte* page, CoreKv kv, int64_t head_dim) {
    const int64_t codes = kPageTokens * head_dim / (kv == CORE_KV_INT8 ? 1 : 2);
    keys = reinterpret_cast<uint8_t*>(page);
    key_steps = reinterpret_cast<float*>(page + codes);
    key_lows = key_steps + kPageTokens;
    values = reinterpret_cast<uint8_t*>(key_lows + kPageTokens);
    value_steps = reinterpret_cast<float*>(values + codes);
    value_lows = value_steps + kPageTokens;
  }
};

// The pool of a program: [layers][num_blocks][kv_heads][block_size / 16] pages. The caller of bind() owns the memory.
struct KvPool {
  std::byte* base = nullptr;
  int64_t num_blocks = 0;
  int64_t page_bytes = 0;
  int32_t kv_heads = 0;
  int32_t pages = 0;  // per block and head

  [[gnu::always_inline]] int64_t block_bytes() const { return page_bytes * pages * kv_heads; }

  // Return the page of a token; slot is its index in the block.
  [[gnu::always_inline]] std::byte* page(int64_t layer, int64_t block, int64_t head, int64_t slot) const {
    const int64_t index = ((layer * num_blocks + block) * kv_heads + head) * pages + slot / kPageTokens;
    return base + index * page_bytes;
  }
};

}  // namespace core
