// The entry points of core_device_kv.h: check, enqueue, return.
#include "cuda/checks_kv.h"
#include "cuda/ops.h"

int64_t core_kv_block_bytes(const CoreKvBlocks* blocks) {
  return blocks != nullptr && core::is_kv_shape(*blocks) ? core::block_bytes(*blocks) : 0;
}

CoreStatus core_append_kv(const CoreAppendKv* args, void* stream) {
  const CoreStatus status = core::check(args);
  return status == CORE_OK ? core::append_kv(*args, static_cast<Stream>(stream)) : status;
}

CoreStatus core_decode_attention(const CoreDecodeAttention* args, void* stream) {
  const CoreStatus status = core::check(args);
  return status == CORE_OK ? core::decode_attention(*args, static_cast<Stream>(stream)) : status;
}

CoreStatus core_prefill_attention(const CorePrefillAttention* args, void* stream) {
  const CoreStatus status = core::check(args);
  return status == CORE_OK ? core::prefill_attention(*args, static_cast<Stream>(stream)) : status;
}

CoreStatus core_copy_blocks(const CoreCopyBlocks* args, void* stream) {
  const CoreStatus status = core::check(args);
  return status == CORE_OK ? core::copy_blocks(*args, static_cast<Stream>(stream)) : status;
}
