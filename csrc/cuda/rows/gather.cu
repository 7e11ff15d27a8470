// Gather of rows by index, for embeddings and logits rows.
#include <cstdint>

#include "common/check.h"
#include "common/status.h"
#include "core_device.h"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace core {
namespace {

constexpr int kMaxThreads = 256;

// Bytes that move together. All ones are NaN in every floating-point format.
template <int Bytes>
struct alignas(Bytes) Chunk {
  unsigned char at[Bytes];

  __device__ static Chunk nan() {
    Chunk chunk;
#pragma unroll
    for (int i = 0; i < Bytes; i++) chunk.at[i] = 0xff;
    return chunk;
  }
};

template <int Bytes>
__global__ void __launch_bounds__(kMaxThreads)
    gather_rows_kernel(const __grid_constant__ CoreGatherRows args, int64_t chunks) {
  begin_kernel();
  const int64_t row = blockIdx.x, id = args.ids[row];
  const bool there = id >= 0 && id < args.count;
  const auto* from = static_cast<const Chunk<Bytes>*>(args.table) + (there ? id : 0) * chunks;
  auto* to = static_cast<Chunk<Bytes>*>(args.out) + row * chunks;
  for (int64_t i = threadIdx.x; i < chunks; i += blockDim.x) to[i] = there ? from[i] : Chunk<Bytes>::nan();
}

template <int Bytes>
int launch_gather(const CoreGatherRows& args, int64_t row_bytes, Stream stream) {
  const int64_t chunks = row_bytes / Bytes;
  return launch_early(gather_rows_kernel<Bytes>, dim3(args.rows), whole_warps(chunks, kMaxThreads), 0, stream, args,
                      chunks);
}

}  // namespace

CoreStatus gather_rows(const CoreGatherRows& args, Stream stream) {
  if (args.rows == 0) return CORE_OK;
  const int64_t row_bytes = args.width * static_cast<int64_t>(dtype_bytes(args.dtype));
  const bool packed = row_bytes % kPackBytes == 0 && in_packs({args.table, args.out});
  return device_status(packed ? launch_gather<kPackBytes>(args, row_bytes, stream)
                              : launch_gather<2>(args, row_bytes, stream));
}

}  // namespace core
