// The entry points of core_cuda and core_sim: check, enqueue, return.
#include "cuda/kv/checks_kv.h"
#include "cuda/ops.h"
#include "cuda/quantized/checks_quantized.h"
#include "cuda/rows/checks_rows.h"

namespace core {

const char* device_error_text(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

// Check the arguments of an op and enqueue it.
template <typename Args>
static CoreStatus checked(const Args* args, CoreStatus (*op)(const Args&, Stream), void* stream) {
  Check check(args);
  if (check.ok()) check_op(check, *args);
  // Kernels get the struct by value, so it may go; what it points to must stay until the stream is past the op.
  return check.ok() ? op(*args, static_cast<Stream>(stream)) : check.result();
}

}  // namespace core

#define ENTRY(op, Args)                                  \
  CoreStatus core_##op(const Args* args, void* stream) { \
    return core::checked(args, core::op, stream);        \
  }
CORE_DEVICE_OPS(ENTRY)

int64_t core_kv_block_bytes(const CoreKvBlocks* blocks) {
  return blocks != nullptr && core::is_kv_shape(*blocks) ? core::block_bytes(*blocks) : 0;
}
