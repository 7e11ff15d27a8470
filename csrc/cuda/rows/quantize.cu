// Quantization of rows to 8 bits, with or without RMSNorm. One block per row.
#include <cstdint>

#include "common/status.h"
#include "core_device.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/rows/norm_row.h"
#include "cuda/rows/row_codes.h"

namespace core {
namespace {

constexpr int kMaxThreads = 512;

template <typename T, int Width>
__global__ void __launch_bounds__(kMaxThreads) quantize_rows_kernel(const __grid_constant__ CoreQuantizeRows args) {
  begin_kernel();
  const int64_t row = blockIdx.x, packs = args.width / Width;
  const auto* x = static_cast<const Pack<T, Width>*>(args.x) + row * packs;
  const auto values = [x](int64_t i) { return in_float(x[i]); };
  put_row_codes<Width>(values, packs, static_cast<uint8_t*>(args.out) + row * args.width, args.scales + row,
                       args.codes);
}

template <typename T, int Width>
int launch_quantize(const CoreQuantizeRows& args, Stream stream) {
  const dim3 threads = whole_warps(args.width / Width, kMaxThreads);
  return launch_early(quantize_rows_kernel<T, Width>, dim3(args.rows), threads, 0, stream, args);
}

// A row after take_input, times its factor and the weight.
template <typename T, int Width>
struct Normed {
  const Pack<T, Width>* in;
  const Pack<T, Width>* weight;
  float scale;

  __device__ Pack<float, Width> operator()(int64_t i) const {
    const Pack<float, Width> x = in_float(in[i]), w = in_float(weight[i]);
    Pack<float, Width> out;
#pragma unroll
    for (int k = 0; k < Width; k++) out.at[k] = x.at[k] * scale * w.at[k];
    return out;
  }
};

template <typename T, int Width>
__global__ void __launch_bounds__(kMaxThreads, 2) rms_norm_codes_kernel(const __grid_constant__ CoreRmsNormCodes args) {
  begin_kernel();
  const int64_t number = blockIdx.x;
  const NormRow<T, Width> row({args.x, args.residual, args.residual_out, args.hidden}, number);
  float share = 0.0f;
  for (int64_t i = threadIdx.x; i < row.packs; i += blockDim.x) share += sum_of_squares(take_input(row, i));
  const Normed<T, Width> normed = {row.taken(), static_cast<const Pack<T, Width>*>(args.weight),
                                   row_scale(share, args.hidden, args.eps)};
  put_row_codes<Width>(normed, row.packs, static_cast<uint8_t*>(args.out) + number * args.hidden, args.scales + number,
                       args.codes);
}

template <typename T, int Width>
int launch_norm(const CoreRmsNormCodes& args, Stream stream) {
  const dim3 threads = whole_warps(args.hidden / Width, kMaxThreads);
  return launch_early(rms_norm_codes_kernel<T, Width>, dim3(args.rows), threads, 0, stream, args);
}

template <typename T>
int quantize(const CoreQuantizeRows& args, Stream stream) {
  constexpr int kWidth = kPackWidth<T>;
  const bool packed = args.width % kWidth == 0 && in_packs({args.x, args.out});
  return packed ? launch_quantize<T, kWidth>(args, stream) : launch_quantize<T, 1>(args, stream);
}

template <typename T>
int norm(const CoreRmsNormCodes& args, Stream stream) {
  constexpr int kWidth = kPackWidth<T>;
  const bool packed =
      args.hidden % kWidth == 0 && in_packs({args.x, args.residual, args.weight, args.residual_out, args.out});
  return packed ? launch_norm<T, kWidth>(args, stream) : launch_norm<T, 1>(args, stream);
}

}  // namespace

CoreStatus quantize_rows(const CoreQuantizeRows& args, Stream stream) {
  if (args.rows == 0) return CORE_OK;
  return device_status(by_dtype(args.dtype, [&](auto zero) { return quantize<decltype(zero)>(args, stream); }));
}

CoreStatus rms_norm_codes(const CoreRmsNormCodes& args, Stream stream) {
  if (args.rows == 0) return CORE_OK;
  return device_status(by_dtype(args.dtype, [&](auto zero) { return norm<decltype(zero)>(args, stream); }));
}

}  // namespace core
