// Dequantization of int8 matrix products with a scale per row and column. Grid: (row, piece of the row).
#include <algorithm>
#include <cstdint>

#include "common/status.h"
#include "core_device.h"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace core {
namespace {

constexpr int kThreads = 256;

template <typename T, int Width>
__global__ void __launch_bounds__(kThreads) scaled_sums_kernel(const __grid_constant__ CoreScaledSums args) {
  begin_kernel();
  const int64_t row = blockIdx.x, packs = args.width / Width;
  const auto* sums = reinterpret_cast<const Pack<int32_t, Width>*>(args.sums) + row * packs;
  const auto* scales = reinterpret_cast<const Pack<float, Width>*>(args.scales);
  const auto* bias = static_cast<const Pack<T, Width>*>(args.bias);
  auto* out = static_cast<Pack<T, Width>*>(args.out) + row * packs;
  const float row_scale = args.row_scales[row];
  for (int64_t i = int64_t{blockIdx.y} * kThreads + threadIdx.x; i < packs; i += int64_t{gridDim.y} * kThreads) {
    const Pack<int32_t, Width> sum = sums[i];
    const Pack<float, Width> scale = scales[i];
    Pack<T, Width> added = {}, rounded;
    if (bias != nullptr) added = bias[i];
#pragma unroll
    for (int k = 0; k < Width; k++) {
      const float number = static_cast<float>(sum.at[k]) * row_scale * scale.at[k];
      rounded.at[k] = from_float<T>(bias != nullptr ? number + to_float(added.at[k]) : number);
    }
    out[i] = rounded;
  }
}

template <typename T, int Width>
int launch_scaled(const CoreScaledSums& args, Stream stream) {
  constexpr int64_t kMostPieces = 1024;
  const int64_t pieces = (args.width / Width + kThreads - 1) / kThreads;
  const dim3 grid(args.rows, std::max<int64_t>(1, std::min(pieces, kMostPieces)));
  return launch_early(scaled_sums_kernel<T, Width>, grid, dim3(kThreads), 0, stream, args);
}

template <typename T>
int scaled(const CoreScaledSums& args, Stream stream) {
  constexpr int kWidth = 4;
  const bool packed = args.width % kWidth == 0 && in_packs({args.sums, args.scales, args.bias, args.out});
  return packed ? launch_scaled<T, kWidth>(args, stream) : launch_scaled<T, 1>(args, stream);
}

}  // namespace

CoreStatus scaled_sums(const CoreScaledSums& args, Stream stream) {
  if (args.rows == 0) return CORE_OK;
  return device_status(by_dtype(args.dtype, [&](auto zero) { return scaled<decltype(zero)>(args, stream); }));
}

}  // namespace core
