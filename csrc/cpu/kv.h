// Where keys and values lie. A block holds, for each KV head, pages of 16 tokens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core_program.h"

namespace core {

constexpr int32_t kPageTokens = 16;

// Bytes of one page of one head: keys, then values.
//   FLOAT32:  keys [head_dim][16], values [16][head_dim]
//   BFLOAT16: keys [head_dim / 2][16][2], values [8][head_dim][2]: pairs along the sum, as products of pairs want them
//   INT8, UINT4: see kernels/kv_codes.inl
int64_t page_bytes(CoreKv kv, int32_t head_dim);

// The pool of a program: [layers][num_blocks][kv_heads][block_size / 16] pages.
struct KvPool {
  std::byte* base = nullptr;
  int64_t num_blocks = 0;
  int64_t page_bytes = 0;
  int32_t kv_heads = 0;
  int32_t pages = 0;  // of a block and head

  [[gnu::always_inline]] int64_t block_bytes() const { return page_bytes * pages * kv_heads; }

  // The page of a token: slot = its position in the block.
  [[gnu::always_inline]] std::byte* page(int64_t layer, int64_t block, int64_t head, int64_t slot) const {
    const int64_t index = ((layer * num_blocks + block) * kv_heads + head) * pages + slot / kPageTokens;
    return base + index * page_bytes;
  }
};

}  // namespace core
