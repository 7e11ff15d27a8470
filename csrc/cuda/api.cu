// The entry points of core_cuda and core_sim: check, enqueue, return.
#include "common/check.h"
#include "core.h"
#include "cuda/ops.h"

const char* core::device_error_text(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

CoreStatus core_rms_norm(const CoreRmsNorm* args, void* stream) {
  const CoreStatus status = core::check(args);
  return status == CORE_OK ? core::rms_norm(*args, static_cast<Stream>(stream)) : status;
}
