#include "common/status.h"

const char* core_status_text(CoreStatus status) {
  switch (core::code_of(status)) {
    case CORE_OK:
      return "success";
    case CORE_NULL_POINTER:
      return "the pointer must not be null";
    case CORE_MISALIGNED:
      return "the pointer is not aligned as the header requires";
    case CORE_BAD_COUNT:
      return "must be 0 to 2147483647";
    case CORE_BAD_EXTENT:
      return "must be 1 to 2147483647";
    case CORE_BAD_NUMBER:
      return "must be finite and not negative";
    case CORE_UNKNOWN_DTYPE:
      return "must be 1 (float32), 2 (bfloat16) or 3 (float16)";
    case CORE_DEVICE_ERROR:
      return core::device_error_text(core::detail_of(status));
    case CORE_NO_MEMORY:
      return "the system has no more memory or threads";
    case CORE_NO_ISA:
      return "must be 0 (the best), 1 (avx2), 2 (avx512), 3 (avx512_vnni), 4 (avx512_bf16) or 5 (amx), and supported "
             "here";
    case CORE_BAD_THREADS:
      return "must be 1 to 1024";
    case CORE_BAD_GROUP:
      return "must be 0 (all inputs), 16, 32, 64 or 128";
    case CORE_BAD_CODE:
      return "does not fit the format's codes";
    case CORE_BAD_SHAPE:
      return "does not fit the other numbers of the shape";
    case CORE_BAD_VALUE:
      return "does not fit the workspace, or the other values of the op";
    case CORE_BAD_BATCH:
      return "does not fit the shape or the pool of the program";
    case CORE_NOT_BOUND:
      return "the program must be bound to a pool, and have joined its ranks, first";
    case CORE_RANK_LOST:
      return "another rank of the model is gone";
  }
  return "unknown status";
}
