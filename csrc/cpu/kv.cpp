#include "cpu/kv.h"

namespace core {

int64_t page_bytes(CoreKv kv, int32_t head_dim) {
  const int64_t entries = int64_t{2} * kPageTokens * head_dim;
  return kv == CORE_KV_FLOAT32 ? entries * 4 : entries * 2;
}

}  // namespace core
