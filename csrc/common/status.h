// Construction and inspection of the statuses of core.h.
#pragma once

#include <cstddef>

#include "core.h"

namespace core {

inline CoreStatus status(CoreCode code, size_t detail) {
  return static_cast<CoreStatus>(detail << 8 | code);
}

inline CoreCode code_of(CoreStatus status) {
  return static_cast<CoreCode>(status & 0xff);
}

inline int detail_of(CoreStatus status) {
  return status >> 8;
}

// Return the status for an error number of the device's runtime, where 0 means success.
inline CoreStatus device_status(int error) {
  return error == 0 ? CORE_OK : status(CORE_DEVICE_ERROR, static_cast<size_t>(error));
}

// Return the device runtime's text for an error number. Each library defines its own.
const char* device_error_text(int error);

}  // namespace core
