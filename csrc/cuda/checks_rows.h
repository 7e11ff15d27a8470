// Checks of the arguments of ops on rows.
#pragma once

#include <initializer_list>

#include "common/check.h"
#include "core_device.h"

namespace core {

// The first of some statuses that is no success.
inline CoreStatus first_bad(std::initializer_list<CoreStatus> found) {
  for (const CoreStatus status : found) {
    if (status != CORE_OK) return status;
  }
  return CORE_OK;
}

inline CoreStatus require(bool right, CoreCode code, size_t offset) {
  return right ? CORE_OK : bad_field(code, offset);
}

inline CoreStatus check_count(int64_t value, size_t offset) {
  return require(value >= 0 && value <= kMaxExtent, CORE_BAD_COUNT, offset);
}

inline CoreStatus check_extent(int64_t value, size_t offset) {
  return require(value >= 1 && value <= kMaxExtent, CORE_BAD_EXTENT, offset);
}

inline CoreStatus check_dtype(int32_t dtype, size_t offset) {
  return require(dtype_bytes(dtype) != 0, CORE_UNKNOWN_DTYPE, offset);
}

inline CoreStatus check_row_codes(int32_t codes, size_t offset) {
  return require(codes == CORE_ROW_CODES_INT8 || codes == CORE_ROW_CODES_FP8, CORE_BAD_CODE, offset);
}

inline CoreStatus check_pointer(const void* pointer, size_t alignment, size_t offset) {
  const PointerField fields[] = {{pointer, offset}};
  return check_pointers(fields, alignment);
}

// A pointer that may be null.
inline CoreStatus check_optional(const void* pointer, size_t alignment, size_t offset) {
  return pointer == nullptr ? CORE_OK : check_pointer(pointer, alignment, offset);
}

inline CoreStatus check_buffers(const CoreQuantizeRows& args) {
  return first_bad({check_pointer(args.x, dtype_bytes(args.dtype), offsetof(CoreQuantizeRows, x)),
                    check_pointer(args.out, 1, offsetof(CoreQuantizeRows, out)),
                    check_pointer(args.scales, sizeof(float), offsetof(CoreQuantizeRows, scales))});
}

inline CoreStatus check_scalars(const CoreQuantizeRows& args) {
  return first_bad({check_count(args.rows, offsetof(CoreQuantizeRows, rows)),
                    check_extent(args.width, offsetof(CoreQuantizeRows, width)),
                    check_dtype(args.dtype, offsetof(CoreQuantizeRows, dtype)),
                    check_row_codes(args.codes, offsetof(CoreQuantizeRows, codes))});
}

inline CoreStatus check_scalars(const CoreRmsNormCodes& args) {
  return first_bad({check_count(args.rows, offsetof(CoreRmsNormCodes, rows)),
                    check_extent(args.hidden, offsetof(CoreRmsNormCodes, hidden)),
                    require(std::isfinite(args.eps) && args.eps >= 0, CORE_BAD_NUMBER, offsetof(CoreRmsNormCodes, eps)),
                    check_dtype(args.dtype, offsetof(CoreRmsNormCodes, dtype)),
                    check_row_codes(args.codes, offsetof(CoreRmsNormCodes, codes))});
}

inline CoreStatus check_buffers(const CoreRmsNormCodes& args) {
  const size_t alignment = dtype_bytes(args.dtype);
  const bool same = (args.residual == nullptr) == (args.residual_out == nullptr);
  const size_t missing =
      args.residual == nullptr ? offsetof(CoreRmsNormCodes, residual) : offsetof(CoreRmsNormCodes, residual_out);
  return first_bad({check_pointer(args.x, alignment, offsetof(CoreRmsNormCodes, x)),
                    check_optional(args.residual, alignment, offsetof(CoreRmsNormCodes, residual)),
                    check_pointer(args.weight, alignment, offsetof(CoreRmsNormCodes, weight)),
                    check_optional(args.residual_out, alignment, offsetof(CoreRmsNormCodes, residual_out)),
                    require(same, CORE_NULL_POINTER, missing),
                    check_pointer(args.out, 1, offsetof(CoreRmsNormCodes, out)),
                    check_pointer(args.scales, sizeof(float), offsetof(CoreRmsNormCodes, scales))});
}

inline CoreStatus check_scalars(const CoreGatedRows& args) {
  const bool known = args.activation >= CORE_GATE_SILU && args.activation <= CORE_GATE_GELU_TANH;
  return first_bad({check_count(args.rows, offsetof(CoreGatedRows, rows)),
                    check_extent(args.width, offsetof(CoreGatedRows, width)),
                    require(args.gate_stride >= args.width, CORE_BAD_SHAPE, offsetof(CoreGatedRows, gate_stride)),
                    require(args.up_stride >= args.width, CORE_BAD_SHAPE, offsetof(CoreGatedRows, up_stride)),
                    check_dtype(args.dtype, offsetof(CoreGatedRows, dtype)),
                    require(known, CORE_BAD_CODE, offsetof(CoreGatedRows, activation)),
                    args.codes == 0 ? CORE_OK : check_row_codes(args.codes, offsetof(CoreGatedRows, codes))});
}

inline CoreStatus check_buffers(const CoreGatedRows& args) {
  const size_t alignment = dtype_bytes(args.dtype), scales = offsetof(CoreGatedRows, scales);
  return first_bad({check_pointer(args.gate, alignment, offsetof(CoreGatedRows, gate)),
                    check_pointer(args.up, alignment, offsetof(CoreGatedRows, up)),
                    check_pointer(args.out, args.codes == 0 ? alignment : 1, offsetof(CoreGatedRows, out)),
                    args.codes == 0 ? CORE_OK : check_pointer(args.scales, sizeof(float), scales)});
}

inline CoreStatus check_scalars(const CoreScaledSums& args) {
  return first_bad({check_count(args.rows, offsetof(CoreScaledSums, rows)),
                    check_extent(args.width, offsetof(CoreScaledSums, width)),
                    check_dtype(args.dtype, offsetof(CoreScaledSums, dtype))});
}

inline CoreStatus check_buffers(const CoreScaledSums& args) {
  const size_t alignment = dtype_bytes(args.dtype);
  return first_bad({check_pointer(args.sums, sizeof(int32_t), offsetof(CoreScaledSums, sums)),
                    check_pointer(args.row_scales, sizeof(float), offsetof(CoreScaledSums, row_scales)),
                    check_pointer(args.scales, sizeof(float), offsetof(CoreScaledSums, scales)),
                    check_optional(args.bias, alignment, offsetof(CoreScaledSums, bias)),
                    check_pointer(args.out, alignment, offsetof(CoreScaledSums, out))});
}

inline CoreStatus check_scalars(const CoreGatherRows& args) {
  return first_bad({check_count(args.rows, offsetof(CoreGatherRows, rows)),
                    check_extent(args.width, offsetof(CoreGatherRows, width)),
                    check_extent(args.count, offsetof(CoreGatherRows, count)),
                    check_dtype(args.dtype, offsetof(CoreGatherRows, dtype))});
}

inline CoreStatus check_buffers(const CoreGatherRows& args) {
  const size_t alignment = dtype_bytes(args.dtype);
  return first_bad({check_pointer(args.table, alignment, offsetof(CoreGatherRows, table)),
                    check_pointer(args.ids, sizeof(int32_t), offsetof(CoreGatherRows, ids)),
                    check_pointer(args.out, alignment, offsetof(CoreGatherRows, out))});
}

inline CoreStatus check_scalars(const CoreSampleRows& args) {
  return first_bad({check_count(args.rows, offsetof(CoreSampleRows, rows)),
                    check_extent(args.vocab, offsetof(CoreSampleRows, vocab)),
                    check_dtype(args.dtype, offsetof(CoreSampleRows, dtype))});
}

inline CoreStatus check_buffers(const CoreSampleRows& args) {
  const bool same = (args.top_ids == nullptr) == (args.top_logprobs == nullptr);
  const size_t missing =
      args.top_ids == nullptr ? offsetof(CoreSampleRows, top_ids) : offsetof(CoreSampleRows, top_logprobs);
  return first_bad({check_pointer(args.logits, dtype_bytes(args.dtype), offsetof(CoreSampleRows, logits)),
                    check_pointer(args.sampling, alignof(CoreSampling), offsetof(CoreSampleRows, sampling)),
                    check_pointer(args.sampled, alignof(CoreSampled), offsetof(CoreSampleRows, sampled)),
                    check_optional(args.top_ids, sizeof(int32_t), offsetof(CoreSampleRows, top_ids)),
                    check_optional(args.top_logprobs, sizeof(double), offsetof(CoreSampleRows, top_logprobs)),
                    require(same, CORE_NULL_POINTER, missing),
                    check_pointer(args.room, sizeof(float), offsetof(CoreSampleRows, room))});
}

}  // namespace core
