// RMSNorm, with or without a residual. One block per row.
#include <cstdint>

#include "common/status.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/rows/norm_row.h"

namespace core {
namespace {

constexpr int kMaxThreads = 512;

// The buffers of one row, in packs.
template <typename T, int Width>
struct Row : NormRow<T, Width> {
  using P = Pack<T, Width>;

  const P* weight;
  P* out;

  __device__ Row(const CoreRmsNorm& args, int64_t row)
      : NormRow<T, Width>({args.x, args.residual, args.residual_out, args.hidden}, row),
        weight(static_cast<const P*>(args.weight)),
        out(static_cast<P*>(args.out) + row * this->packs) {}
};

template <typename T, int Width>
__device__ void put_output(const Row<T, Width>& row, int i, Pack<T, Width> in, float scale) {
  const Pack<T, Width> weight = row.weight[i];
  Pack<T, Width> out;
#pragma unroll
  for (int k = 0; k < Width; k++) out.at[k] = from_float<T>(to_float(in.at[k]) * scale * to_float(weight.at[k]));
  row.out[i] = out;
}

// The row is read once and kept in registers: each thread holds Kept packs, so blockDim.x * Kept packs cover it.
template <typename T, int Width, int Kept>
__global__ void __launch_bounds__(kMaxThreads) rms_norm_kept(const __grid_constant__ CoreRmsNorm args) {
  begin_kernel();
  const Row<T, Width> row(args, blockIdx.x);
  Pack<T, Width> kept[Kept];
  float share = 0.0f;
#pragma unroll
  for (int k = 0; k < Kept; k++) {
    const int i = static_cast<int>(threadIdx.x + k * blockDim.x);
    if (i >= row.packs) continue;
    kept[k] = take_input(row, i);
    share += sum_of_squares(kept[k]);
  }
  const float scale = row_scale(share, args.hidden, args.eps);
#pragma unroll
  for (int k = 0; k < Kept; k++) {
    const int i = static_cast<int>(threadIdx.x + k * blockDim.x);
    if (i < row.packs) put_output(row, i, kept[k], scale);
  }
}

// A row of any length, read twice. A thread reads only what it wrote itself, so residual_out needs no barrier.
template <typename T, int Width>
__global__ void __launch_bounds__(kMaxThreads) rms_norm_streamed(const __grid_constant__ CoreRmsNorm args) {
  begin_kernel();
  const Row<T, Width> row(args, blockIdx.x);
  float share = 0.0f;
  for (int64_t i = threadIdx.x; i < row.packs; i += blockDim.x) share += sum_of_squares(take_input(row, i));
  const float scale = row_scale(share, args.hidden, args.eps);
  const Pack<T, Width>* in = row.taken();
  for (int64_t i = threadIdx.x; i < row.packs; i += blockDim.x) put_output(row, i, in[i], scale);
}

template <typename T, int Width, int Kept>
int launch_kept(const CoreRmsNorm& args, Stream stream) {
  const int64_t threads = (args.hidden / Width + Kept - 1) / Kept;
  return launch_early(rms_norm_kept<T, Width, Kept>, dim3(args.rows), whole_warps(threads, kMaxThreads), 0, stream,
                      args);
}

template <typename T, int Width>
int launch_streamed(const CoreRmsNorm& args, Stream stream) {
  return launch_early(rms_norm_streamed<T, Width>, dim3(args.rows), whole_warps(args.hidden / Width, kMaxThreads), 0,
                      stream, args);
}

// True if every row of every buffer is aligned to a pack.
bool packed(const CoreRmsNorm& args, int width) {
  return args.hidden % width == 0 && in_packs({args.x, args.residual, args.weight, args.out, args.residual_out});
}

template <typename T>
int launch_rms_norm(const CoreRmsNorm& args, Stream stream) {
  constexpr int kWidth = kPackWidth<T>;
  if (!packed(args, kWidth)) return launch_streamed<T, 1>(args, stream);
  const int64_t packs = args.hidden / kWidth;
  if (packs <= kMaxThreads) return launch_kept<T, kWidth, 1>(args, stream);
  if (packs <= kMaxThreads * 2) return launch_kept<T, kWidth, 2>(args, stream);
  if (packs <= kMaxThreads * 4) return launch_kept<T, kWidth, 4>(args, stream);
  return launch_streamed<T, kWidth>(args, stream);
}

}  // namespace

CoreStatus rms_norm(const CoreRmsNorm& args, Stream stream) {
  if (args.rows == 0) return CORE_OK;
  switch (args.dtype) {
    case CORE_FLOAT32:
      return device_status(launch_rms_norm<float>(args, stream));
    case CORE_BFLOAT16:
      return device_status(launch_rms_norm<BFloat16>(args, stream));
    default:
      return device_status(launch_rms_norm<Float16>(args, stream));
  }
}

}  // namespace core
