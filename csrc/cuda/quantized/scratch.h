// The scratch buffer of the product with a quantized matrix: sums of x over the inputs of a scale, which offsets are
// multiplied with, if there are many rows; then the sums of each split, if there are several.
#pragma once

#include <cstdint>

#include "common/both.h"
#include "core_device.h"
#include "cuda/number.h"
#include "cuda/quantized/layout.h"

namespace core {

constexpr int kMostRowsOfBlock = 128;  // of the kernel for many rows

struct QuantizedScratch {
  int64_t units;   // sums of a row, including padding of its last step; 0: x is not summed beforehand
  int64_t padded;  // rows of x, to whole blocks: [units, padded]

  CORE_BOTH QuantizedScratch(const CoreQuantized& matrix, int64_t rows) {
    const int64_t steps = (matrix.inputs + kStepInputs - 1) / kStepInputs;
    units = matrix.offsets != 0 && rows > CORE_QUANTIZED_FEW_ROWS ? steps * scales_of_step(matrix) : 0;
    padded = (rows + kMostRowsOfBlock - 1) / kMostRowsOfBlock * kMostRowsOfBlock;
  }

  // Return the number of sums of x.
  CORE_BOTH int64_t of_x() const { return units * padded; }
};

// Return the values of the whole buffer.
CORE_BOTH int64_t scratch_values(const CoreQuantized& matrix, int64_t rows, int32_t splits) {
  return QuantizedScratch(matrix, rows).of_x() + (splits > 1 ? splits * rows * matrix.outputs : 0);
}

// Return the sums of a split: [rows, outputs].
__device__ inline float* sums_of_split(const CoreQuantizedLinear& args, int64_t split) {
  return args.scratch + QuantizedScratch(args.matrix, args.rows).of_x() + split * args.rows * args.matrix.outputs;
}

// Store the sum of an output of a row, if both are there: in out, or with several splits in the sums of this one.
template <typename T>
__device__ void put_sum(const CoreQuantizedLinear& args, float* of_split, int64_t output, int64_t row, float sum) {
  if (output >= args.matrix.outputs || row >= args.rows) return;
  const int64_t place = row * args.matrix.outputs + output;
  if (args.splits != 1) {
    of_split[place] = sum;
    return;
  }
  const float added = args.bias != nullptr ? to_float(static_cast<const T*>(args.bias)[output]) : 0.0f;
  static_cast<T*>(args.out)[place] = from_float<T>(sum + added);
}

}  // namespace core
