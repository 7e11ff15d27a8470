// LayerNorm. One block per row, which is read three times: for its mean, for its variance, and for its output.
#include <cstdint>

#include "common/status.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/reduce.h"

namespace core {
namespace {

constexpr int kMaxThreads = 512;

// Return the sum over the row of term(entry), to every thread of the block.
template <typename T, int Width, typename Term>
__device__ float sum_of_row(const Pack<T, Width>* row, int64_t packs, Term term) {
  float share = 0.0f;
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    const Pack<T, Width> pack = row[i];
#pragma unroll
    for (int k = 0; k < Width; k++) share += term(to_float(pack.at[k]));
  }
  return block_sum(share);
}

template <typename T, int Width>
__global__ void __launch_bounds__(kMaxThreads) layer_norm_kernel(const __grid_constant__ CoreLayerNormRows args) {
  begin_kernel();
  using P = Pack<T, Width>;
  const int64_t packs = args.hidden / Width, offset = int64_t{blockIdx.x} * packs;
  const P *x = static_cast<const P*>(args.x) + offset, *weights = static_cast<const P*>(args.weight);
  const P* biases = static_cast<const P*>(args.bias);
  P* rows = static_cast<P*>(args.out) + offset;
  const auto n = static_cast<float>(args.hidden);
  const float mean = sum_of_row(x, packs, [](float each) { return each; }) / n;
  const float squares = sum_of_row(x, packs, [mean](float each) { return (each - mean) * (each - mean); });
  const float scale = inverse_sqrt(squares / n + args.eps);
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    const P in = x[i], weight = weights[i], bias = biases == nullptr ? P{} : biases[i];
    P out;
#pragma unroll
    for (int k = 0; k < Width; k++) {
      const float centred = (to_float(in.at[k]) - mean) * scale * to_float(weight.at[k]);
      out.at[k] = from_float<T>(biases == nullptr ? centred : centred + to_float(bias.at[k]));
    }
    rows[i] = out;
  }
}

template <typename T, int Width>
int launch_rows(const CoreLayerNormRows& args, Stream stream) {
  const dim3 threads = whole_warps(args.hidden / Width, kMaxThreads);
  return launch_early(layer_norm_kernel<T, Width>, dim3(args.rows), threads, 0, stream, args);
}

template <typename T>
int launch_layer_norm(const CoreLayerNormRows& args, Stream stream) {
  constexpr int kWidth = kPackWidth<T>;
  const bool packed = args.hidden % kWidth == 0 && in_packs({args.x, args.weight, args.bias, args.out});
  return packed ? launch_rows<T, kWidth>(args, stream) : launch_rows<T, 1>(args, stream);
}

}  // namespace

CoreStatus layer_norm_rows(const CoreLayerNormRows& args, Stream stream) {
  if (args.rows == 0) return CORE_OK;
  return device_status(
      by_dtype(args.dtype, [&](auto zero) { return launch_layer_norm<decltype(zero)>(args, stream); }));
}

}  // namespace core
