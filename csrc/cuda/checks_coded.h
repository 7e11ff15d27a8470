// Checks of the arguments of ops on matrices of codes.
#pragma once

#include "cuda/checks_rows.h"

namespace core {

// A description that lies at `base` in a struct of arguments; its data is not looked at.
inline CoreStatus check_coded(const CoreCoded& matrix, size_t base) {
  const int32_t group = matrix.group;
  const bool groups = group == 0 || group == 32 || group == 64 || group == 128;
  const bool scales = matrix.scales == CORE_FLOAT32 || matrix.scales == CORE_FLOAT16;
  const bool numbers = matrix.dtype == CORE_BFLOAT16 || matrix.dtype == CORE_FLOAT16;
  const bool bits = matrix.bits == 4 || matrix.bits == 8;
  return first_bad({check_extent(matrix.outputs, base + offsetof(CoreCoded, outputs)),
                    check_extent(matrix.inputs, base + offsetof(CoreCoded, inputs)),
                    require(bits, CORE_BAD_CODE, base + offsetof(CoreCoded, bits)),
                    require(groups, CORE_BAD_GROUP, base + offsetof(CoreCoded, group)),
                    require(scales, CORE_UNKNOWN_DTYPE, base + offsetof(CoreCoded, scales)),
                    require(matrix.zero >= 0 && matrix.zero < 1 << (bits ? matrix.bits : 8), CORE_BAD_CODE,
                            base + offsetof(CoreCoded, zero)),
                    require(numbers, CORE_UNKNOWN_DTYPE, base + offsetof(CoreCoded, dtype))});
}

inline CoreStatus check_scalars(const CoreCodedLinear& args) {
  const bool splits = args.splits >= 1 && args.splits <= 65535;
  return first_bad(
      {check_coded(args.matrix, offsetof(CoreCodedLinear, matrix)),
       require(args.rows >= 0 && args.rows <= CORE_CODED_ROWS, CORE_BAD_COUNT, offsetof(CoreCodedLinear, rows)),
       require(splits, CORE_BAD_EXTENT, offsetof(CoreCodedLinear, splits))});
}

inline CoreStatus check_buffers(const CoreCodedLinear& args) {
  const size_t alignment = dtype_bytes(args.matrix.dtype), room = offsetof(CoreCodedLinear, room);
  return first_bad({check_pointer(args.matrix.data, 16, offsetof(CoreCodedLinear, matrix)),
                    check_pointer(args.x, alignment, offsetof(CoreCodedLinear, x)),
                    check_optional(args.bias, alignment, offsetof(CoreCodedLinear, bias)),
                    check_pointer(args.out, alignment, offsetof(CoreCodedLinear, out)),
                    args.splits == 1 ? CORE_OK : check_pointer(args.room, sizeof(float), room)});
}

inline CoreStatus check_scalars(const CoreCodedRows& args) {
  return first_bad({check_coded(args.matrix, offsetof(CoreCodedRows, matrix)),
                    check_count(args.rows, offsetof(CoreCodedRows, rows)),
                    check_count(args.first, offsetof(CoreCodedRows, first)),
                    require(args.ids == nullptr || args.first == 0, CORE_BAD_COUNT, offsetof(CoreCodedRows, first))});
}

inline CoreStatus check_buffers(const CoreCodedRows& args) {
  return first_bad({check_pointer(args.matrix.data, 16, offsetof(CoreCodedRows, matrix)),
                    check_optional(args.ids, sizeof(int32_t), offsetof(CoreCodedRows, ids)),
                    check_pointer(args.out, dtype_bytes(args.matrix.dtype), offsetof(CoreCodedRows, out))});
}

}  // namespace core
