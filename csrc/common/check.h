// Checks of arguments, the same in every library, so that a wrong call is a status and never a crash.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/status.h"
#include "core.h"

namespace core {

constexpr int64_t kMaxExtent = INT32_MAX;

// A pointer of a parameter struct, and where in the struct it lies.
struct PointerField {
  const void* pointer;
  size_t offset;
};

inline CoreStatus bad_field(CoreCode code, size_t offset) {
  return status(code, offset + 1);
}

// Bytes of one element; 0 for what is no CoreDtype.
inline size_t dtype_bytes(int32_t dtype) {
  switch (dtype) {
    case CORE_FLOAT32:
      return 4;
    case CORE_BFLOAT16:
    case CORE_FLOAT16:
      return 2;
    default:
      return 0;
  }
}

template <size_t N>
CoreStatus check_pointers(const PointerField (&fields)[N], size_t alignment) {
  for (const PointerField& field : fields) {
    if (field.pointer == nullptr) return bad_field(CORE_NULL_POINTER, field.offset);
    if (reinterpret_cast<uintptr_t>(field.pointer) % alignment != 0) return bad_field(CORE_MISALIGNED, field.offset);
  }
  return CORE_OK;
}

inline CoreStatus check_scalars(const CoreRmsNorm& args) {
  if (args.rows < 0 || args.rows > kMaxExtent) return bad_field(CORE_BAD_COUNT, offsetof(CoreRmsNorm, rows));
  if (args.hidden < 1 || args.hidden > kMaxExtent) return bad_field(CORE_BAD_EXTENT, offsetof(CoreRmsNorm, hidden));
  if (!std::isfinite(args.eps) || args.eps < 0) return bad_field(CORE_BAD_NUMBER, offsetof(CoreRmsNorm, eps));
  if (dtype_bytes(args.dtype) == 0) return bad_field(CORE_UNKNOWN_DTYPE, offsetof(CoreRmsNorm, dtype));
  return CORE_OK;
}

inline CoreStatus check_buffers(const CoreRmsNorm& args) {
  const PointerField always[] = {
      {args.x, offsetof(CoreRmsNorm, x)},
      {args.weight, offsetof(CoreRmsNorm, weight)},
      {args.out, offsetof(CoreRmsNorm, out)},
  };
  const PointerField with_residual[] = {
      {args.residual, offsetof(CoreRmsNorm, residual)},
      {args.residual_out, offsetof(CoreRmsNorm, residual_out)},
  };
  const size_t alignment = dtype_bytes(args.dtype);
  const CoreStatus status = check_pointers(always, alignment);
  if (status != CORE_OK || (args.residual == nullptr && args.residual_out == nullptr)) return status;
  return check_pointers(with_residual, alignment);
}

// Everything that can be known about a call before it runs.
inline CoreStatus check(const CoreRmsNorm* args) {
  if (args == nullptr) return status(CORE_NULL_POINTER, 0);
  const CoreStatus status = check_scalars(*args);
  return status != CORE_OK || args->rows == 0 ? status : check_buffers(*args);
}

}  // namespace core
