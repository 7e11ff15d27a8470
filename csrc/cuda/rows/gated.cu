// activation(gate) * up, or activation(gate), in the dtype or quantized.
#include <algorithm>
#include <cstdint>

#include "common/status.h"
#include "core_device.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/rows/row_codes.h"

namespace core {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxThreads = 512;

__device__ inline float activated(float x, int32_t activation) {
  if (activation == CORE_GATE_SILU) return x / (1.0f + expf(-x));
  if (activation == CORE_GATE_GELU) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
  return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

__device__ inline float combined(float gate, float up, int32_t activation) {
  if (activation != CORE_GATE_CLAMPED) return activated(gate, activation) * up;
  const float g = gate > 7.0f ? 7.0f : gate, below = up > 7.0f ? 7.0f : up;  // NaN stays
  return g / (1.0f + expf(-1.702f * g)) * ((below < -7.0f ? -7.0f : below) + 1.0f);
}

// One row of products.
template <typename T, int Width>
struct Products {
  const Pack<T, Width>* gate;
  const Pack<T, Width>* up;  // null: none
  int32_t activation;

  __device__ Products(const CoreGatedRows& args, int64_t row)
      : gate(static_cast<const Pack<T, Width>*>(args.gate) + row * (args.gate_stride / Width)),
        up(args.up == nullptr ? nullptr : static_cast<const Pack<T, Width>*>(args.up) + row * (args.up_stride / Width)),
        activation(args.activation) {}

  __device__ Pack<float, Width> operator()(int64_t i) const {
    const Pack<float, Width> g = in_float(gate[i]);
    Pack<float, Width> out;
    if (up == nullptr) {
#pragma unroll
      for (int k = 0; k < Width; k++) out.at[k] = activated(g.at[k], activation);
      return out;
    }
    const Pack<float, Width> u = in_float(up[i]);
#pragma unroll
    for (int k = 0; k < Width; k++) out.at[k] = combined(g.at[k], u.at[k], activation);
    return out;
  }
};

// Output in the dtype. Grid: (row, piece of the row).
template <typename T, int Width>
__global__ void __launch_bounds__(kThreads) gated_rows_kernel(const __grid_constant__ CoreGatedRows args) {
  begin_kernel();
  const int64_t row = blockIdx.x, packs = args.width / Width;
  const Products<T, Width> products(args, row);
  auto* out = static_cast<Pack<T, Width>*>(args.out) + row * packs;
  for (int64_t i = int64_t{blockIdx.y} * kThreads + threadIdx.x; i < packs; i += int64_t{gridDim.y} * kThreads) {
    const Pack<float, Width> product = products(i);
    Pack<T, Width> rounded;
#pragma unroll
    for (int k = 0; k < Width; k++) rounded.at[k] = from_float<T>(product.at[k]);
    out[i] = rounded;
  }
}

// Quantized output. One block per row.
template <typename T, int Width>
__global__ void __launch_bounds__(kMaxThreads) gated_codes_kernel(const __grid_constant__ CoreGatedRows args) {
  begin_kernel();
  const int64_t row = blockIdx.x;
  const Products<T, Width> products(args, row);
  put_row_codes<Width>(products, args.width / Width, static_cast<uint8_t*>(args.out) + row * args.width,
                       args.scales + row, args.codes);
}

template <typename T, int Width>
int launch_gated(const CoreGatedRows& args, Stream stream) {
  constexpr int64_t kMostPieces = 1024;
  const int64_t packs = args.width / Width, pieces = (packs + kThreads - 1) / kThreads;
  if (args.codes != 0) {
    const dim3 threads = whole_warps(packs, kMaxThreads);
    return launch_early(gated_codes_kernel<T, Width>, dim3(args.rows), threads, 0, stream, args);
  }
  const dim3 grid(args.rows, std::min(pieces, kMostPieces));
  return launch_early(gated_rows_kernel<T, Width>, grid, dim3(kThreads), 0, stream, args);
}

template <typename T>
int gated(const CoreGatedRows& args, Stream stream) {
  constexpr int kWidth = kPackWidth<T>;
  const bool packed = (args.width | args.gate_stride | args.up_stride) % kWidth == 0;
  return packed && in_packs({args.gate, args.up, args.out}) ? launch_gated<T, kWidth>(args, stream)
                                                            : launch_gated<T, 1>(args, stream);
}

}  // namespace

CoreStatus gated_rows(const CoreGatedRows& args, Stream stream) {
  if (args.rows == 0) return CORE_OK;
  return device_status(by_dtype(args.dtype, [&](auto zero) { return gated<decltype(zero)>(args, stream); }));
}

}  // namespace core
