// Checks of the arguments of ops on quantized matrices.
#pragma once

#include "common/check.h"
#include "core_device.h"

namespace core {

// Check a description, which is, or is in, the checked struct; its data is not read.
inline void check_quantized(Check& check, const CoreQuantized& matrix) {
  const int32_t group = matrix.group;
  const bool groups = group == 0 || group == 32 || group == 64 || group == 128;
  const bool scales = matrix.scales == CORE_FLOAT32 || matrix.scales == CORE_FLOAT16;
  const bool numbers = matrix.dtype == CORE_BFLOAT16 || matrix.dtype == CORE_FLOAT16;
  const bool bits = matrix.bits == 4 || matrix.bits == 8;
  check.extent(matrix.outputs).extent(matrix.inputs);
  check.that(bits, CORE_BAD_CODE, matrix.bits).that(groups, CORE_BAD_GROUP, matrix.group);
  check.that(scales, CORE_UNKNOWN_DTYPE, matrix.scales);
  check.that(matrix.zero >= 0 && matrix.zero < 1 << (bits ? matrix.bits : 8), CORE_BAD_CODE, matrix.zero);
  check.that(numbers, CORE_UNKNOWN_DTYPE, matrix.dtype);
}

// Return the status of a description.
inline CoreStatus quantized_status(const CoreQuantized* matrix) {
  Check check(matrix);
  if (check.ok()) check_quantized(check, *matrix);
  return check.result();
}

// Check the pointer to its data. The status names the whole matrix.
inline void check_data(Check& check, const CoreQuantized& matrix) {
  check.that(matrix.data != nullptr, CORE_NULL_POINTER, matrix);
  check.that(reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0, CORE_MISALIGNED, matrix);
}

inline void check_op(Check& check, const CoreQuantizedLinear& args) {
  check_quantized(check, args.matrix);
  check.that(args.rows >= 0 && args.rows <= CORE_QUANTIZED_ROWS, CORE_BAD_COUNT, args.rows);
  check.that(args.splits >= 1 && args.splits <= 65535, CORE_BAD_EXTENT, args.splits);
  if (!check.ok() || args.rows == 0) return;
  const size_t alignment = dtype_bytes(args.matrix.dtype);
  check_data(check, args.matrix);
  check.pointer(args.x, alignment).optional(args.bias, alignment).pointer(args.out, alignment);
  if (args.splits != 1) check.pointer(args.scratch, sizeof(float));
}

inline void check_op(Check& check, const CoreUnpackRows& args) {
  check_quantized(check, args.matrix);
  check.count(args.rows).count(args.first);
  check.that(args.ids == nullptr || args.first == 0, CORE_BAD_COUNT, args.first);
  if (!check.ok() || args.rows == 0) return;
  check_data(check, args.matrix);
  check.optional(args.ids, sizeof(int32_t)).pointer(args.out, dtype_bytes(args.matrix.dtype));
}

}  // namespace core
