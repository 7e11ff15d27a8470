// The entry points of core_cpu: check, compute, return.
#include "common/check.h"
#include "core.h"
#include "cpu/ops.h"

const char* core::device_error_text(int) {
  return "the CPU has no device errors";
}

CoreStatus core_rms_norm(const CoreRmsNorm* args, void*) {
  const CoreStatus status = core::check(args);
  if (status == CORE_OK) core::rms_norm(*args);
  return status;
}
