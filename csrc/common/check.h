// Checks of arguments, common to all libraries: a wrong call returns a status and never crashes.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/status.h"
#include "core.h"

namespace core {

constexpr int64_t kMaxExtent = INT32_MAX;

// Return the bytes of one element; 0 if dtype is not a CoreDtype.
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

// Checks the fields of a parameter struct and keeps the first error. Pass fields by reference from within the struct:
// the offset in the status is computed from their address.
class Check {
 public:
  explicit Check(const void* args) : args_(reinterpret_cast<uintptr_t>(args)) {
    if (args == nullptr) status_ = status(CORE_NULL_POINTER, 0);
  }

  CoreStatus result() const { return status_; }
  bool ok() const { return status_ == CORE_OK; }

  template <typename Field>
  Check& that(bool holds, CoreCode code, const Field& field) {
    if (ok() && !holds) status_ = status(code, 1 + (reinterpret_cast<uintptr_t>(&field) - args_));
    return *this;
  }

  template <typename Integer>
  Check& count(const Integer& field) {
    return that(int64_t{field} >= 0 && int64_t{field} <= kMaxExtent, CORE_BAD_COUNT, field);
  }

  template <typename Integer>
  Check& extent(const Integer& field) {
    return that(int64_t{field} >= 1 && int64_t{field} <= kMaxExtent, CORE_BAD_EXTENT, field);
  }

  Check& not_negative(const float& field) { return that(std::isfinite(field) && field >= 0, CORE_BAD_NUMBER, field); }

  Check& dtype(const int32_t& field) { return that(dtype_bytes(field) != 0, CORE_UNKNOWN_DTYPE, field); }

  template <typename T>
  Check& pointer(T* const& field, size_t alignment = 1) {
    that(field != nullptr, CORE_NULL_POINTER, field);
    return that(reinterpret_cast<uintptr_t>(field) % alignment == 0, CORE_MISALIGNED, field);
  }

  // A pointer that may be null.
  template <typename T>
  Check& optional(T* const& field, size_t alignment) {
    return field == nullptr ? *this : pointer(field, alignment);
  }

 private:
  const uintptr_t args_;
  CoreStatus status_ = CORE_OK;
};

}  // namespace core
