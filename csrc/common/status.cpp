#include "common/status.h"

const char* core_status_text(CoreStatus status) {
  switch (core::code_of(status)) {
    case CORE_OK:
      return "success";
    case CORE_NULL_POINTER:
      return "the pointer must not be null";
    case CORE_MISALIGNED:
      return "the pointer must be aligned to the size of an element";
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
  }
  return "unknown status";
}
