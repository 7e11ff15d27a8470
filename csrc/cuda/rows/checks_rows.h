// Checks of the arguments of ops on rows.
#pragma once

#include "common/check.h"
#include "core_device.h"

namespace core {

inline bool is_row_codes(int32_t codes) {
  return codes == CORE_ROW_CODES_INT8 || codes == CORE_ROW_CODES_FP8;
}

// Both residuals of a norm, or none.
template <typename Args>
void check_residuals(Check& check, const Args& args, size_t alignment) {
  check.optional(args.residual, alignment).optional(args.residual_out, alignment);
  check.that(args.residual != nullptr || args.residual_out == nullptr, CORE_NULL_POINTER, args.residual);
  check.that(args.residual == nullptr || args.residual_out != nullptr, CORE_NULL_POINTER, args.residual_out);
}

inline void check_op(Check& check, const CoreRmsNorm& args) {
  check.count(args.rows).extent(args.hidden).not_negative(args.eps).dtype(args.dtype);
  if (!check.ok() || args.rows == 0) return;
  const size_t alignment = dtype_bytes(args.dtype);
  check.pointer(args.x, alignment).pointer(args.weight, alignment).pointer(args.out, alignment);
  check_residuals(check, args, alignment);
}

inline void check_op(Check& check, const CoreLayerNormRows& args) {
  check.count(args.rows).extent(args.hidden).not_negative(args.eps).dtype(args.dtype);
  if (!check.ok() || args.rows == 0) return;
  const size_t alignment = dtype_bytes(args.dtype);
  check.pointer(args.x, alignment).pointer(args.weight, alignment).optional(args.bias, alignment);
  check.pointer(args.out, alignment);
}

inline void check_op(Check& check, const CoreQuantizeRows& args) {
  check.count(args.rows).extent(args.width).dtype(args.dtype);
  check.that(is_row_codes(args.codes), CORE_BAD_CODE, args.codes);
  if (!check.ok() || args.rows == 0) return;
  check.pointer(args.x, dtype_bytes(args.dtype)).pointer(args.out).pointer(args.scales, sizeof(float));
}

inline void check_op(Check& check, const CoreRmsNormCodes& args) {
  check.count(args.rows).extent(args.hidden).not_negative(args.eps).dtype(args.dtype);
  check.that(is_row_codes(args.codes), CORE_BAD_CODE, args.codes);
  if (!check.ok() || args.rows == 0) return;
  const size_t alignment = dtype_bytes(args.dtype);
  check.pointer(args.x, alignment).pointer(args.weight, alignment);
  check_residuals(check, args, alignment);
  check.pointer(args.out).pointer(args.scales, sizeof(float));
}

inline void check_op(Check& check, const CoreGatedRows& args) {
  const bool known = args.activation >= CORE_GATE_SILU && args.activation <= CORE_GATE_CLAMPED;
  check.count(args.rows).extent(args.width);
  check.that(args.gate_stride >= args.width, CORE_BAD_SHAPE, args.gate_stride);
  check.that(args.up_stride >= args.width, CORE_BAD_SHAPE, args.up_stride);
  check.dtype(args.dtype).that(known, CORE_BAD_CODE, args.activation);
  check.that(args.codes == 0 || is_row_codes(args.codes), CORE_BAD_CODE, args.codes);
  if (!check.ok() || args.rows == 0) return;
  const size_t alignment = dtype_bytes(args.dtype);
  check.pointer(args.gate, alignment).pointer(args.out, args.codes == 0 ? alignment : 1);
  // A clamped gate adds to up: without one it has no meaning.
  if (args.activation == CORE_GATE_CLAMPED) check.pointer(args.up, alignment);
  check.optional(args.up, alignment);
  if (args.codes != 0) check.pointer(args.scales, sizeof(float));
}

inline void check_op(Check& check, const CoreScaledSums& args) {
  check.count(args.rows).extent(args.width).dtype(args.dtype);
  if (!check.ok() || args.rows == 0) return;
  const size_t alignment = dtype_bytes(args.dtype);
  check.pointer(args.sums, sizeof(int32_t)).pointer(args.row_scales, sizeof(float));
  check.pointer(args.scales, sizeof(float)).optional(args.bias, alignment).pointer(args.out, alignment);
}

inline void check_op(Check& check, const CoreGatherRows& args) {
  check.count(args.rows).extent(args.width).extent(args.count).dtype(args.dtype);
  if (!check.ok() || args.rows == 0) return;
  const size_t alignment = dtype_bytes(args.dtype);
  check.pointer(args.table, alignment).pointer(args.ids, sizeof(int32_t)).pointer(args.out, alignment);
}

inline void check_op(Check& check, const CoreSampleRows& args) {
  check.count(args.rows).extent(args.vocab).dtype(args.dtype);
  if (!check.ok() || args.rows == 0) return;
  check.pointer(args.logits, dtype_bytes(args.dtype)).pointer(args.sampling, alignof(CoreSampling));
  check.pointer(args.sampled, alignof(CoreSampled));
  check.optional(args.top_ids, sizeof(int32_t)).optional(args.top_logprobs, sizeof(double));
  check.that(args.top_ids != nullptr || args.top_logprobs == nullptr, CORE_NULL_POINTER, args.top_ids);
  check.that(args.top_ids == nullptr || args.top_logprobs != nullptr, CORE_NULL_POINTER, args.top_logprobs);
  check.pointer(args.scratch, sizeof(float));
}

}  // namespace core
