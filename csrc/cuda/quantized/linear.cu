// Products with a quantized matrix: the kernel by the number of rows, and the sum of its splits.
#include <algorithm>
#include <cstdint>

#include "common/status.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/quantized/checks_quantized.h"
#include "cuda/quantized/products.h"
#include "cuda/quantized/scratch.h"

namespace core {
namespace {

constexpr int kJoinThreads = 256;

// Add the sums of the splits, in a fixed order.
template <typename T>
__global__ void __launch_bounds__(kJoinThreads) join_splits_kernel(const __grid_constant__ CoreQuantizedLinear args) {
  const int64_t count = args.rows * args.matrix.outputs, place = int64_t{blockIdx.x} * kJoinThreads + threadIdx.x;
  if (place >= count) return;
  const float* sums = sums_of_split(args, 0);
  float sum = 0.0f;
  for (int split = 0; split < args.splits; split++) sum += sums[split * count + place];
  if (args.bias != nullptr) sum += to_float(static_cast<const T*>(args.bias)[place % args.matrix.outputs]);
  static_cast<T*>(args.out)[place] = from_float<T>(sum);
}

bool is_few(int64_t rows) {
  return rows <= CORE_QUANTIZED_FEW_ROWS;
}

template <typename T>
int linear(const CoreQuantizedLinear& args, Stream stream) {
  const int error = is_few(args.rows) ? few_rows<T>(args, stream) : many_rows<T>(args, stream);
  if (error != 0 || args.splits == 1) return error;
  const int64_t blocks = (args.rows * args.matrix.outputs + kJoinThreads - 1) / kJoinThreads;
  return launch(join_splits_kernel<T>, dim3(blocks), dim3(kJoinThreads), 0, stream, args);
}

}  // namespace

CoreStatus quantized_linear(const CoreQuantizedLinear& args, Stream stream) {
  if (args.rows == 0) return CORE_OK;
  return device_status(args.matrix.dtype == CORE_BFLOAT16 ? linear<BFloat16>(args, stream)
                                                          : linear<Float16>(args, stream));
}

}  // namespace core

int32_t core_quantized_splits(const CoreQuantized* matrix, int64_t rows, int32_t multiprocessors) {
  if (core::quantized_status(matrix) != CORE_OK || multiprocessors < 1) return 0;
  const core::QuantizedLayout layout(*matrix);
  const auto splits = core::is_few(rows) ? core::few_rows_splits : core::many_rows_splits;
  return static_cast<int32_t>(std::max<int64_t>(1, splits(layout, rows, multiprocessors)));
}

int64_t core_quantized_scratch(const CoreQuantized* matrix, int64_t rows, int32_t splits) {
  if (core::quantized_status(matrix) != CORE_OK || rows < 0 || splits < 1) return 0;
  return core::scratch_values(*matrix, rows, splits);
}
