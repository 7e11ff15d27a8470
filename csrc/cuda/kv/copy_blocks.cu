// Copies of whole KV blocks. If one side is pinned host memory, the same kernel reads or writes it over the bus: one
// launch for any number of blocks instead of one copy for each.
#include <algorithm>
#include <cstdint>

#include "common/status.h"
#include "cuda/number.h"
#include "cuda/ops.h"

namespace core {
namespace {

using Unit = Pack<uint32_t, 4>;

constexpr int kThreads = 256;
constexpr int kUnitsOfThread = 8;  // at most, before a piece is split among more thread blocks

// Grid: (part of a piece, piece of a block, pair of blocks).
__global__ void __launch_bounds__(kThreads) copy_blocks_kernel(const __grid_constant__ CoreCopyBlocks args) {
  begin_kernel();
  const int64_t units = args.bytes / static_cast<int64_t>(sizeof(Unit));
  for (int64_t pair = blockIdx.z; pair < args.count; pair += gridDim.z) {
    const int64_t from_block = args.pairs[pair * 2], to_block = args.pairs[pair * 2 + 1];
    const auto* from =
        reinterpret_cast<const Unit*>(static_cast<const unsigned char*>(args.source) + from_block * args.source_stride +
                                      blockIdx.y * args.source_piece_stride);
    auto* to = reinterpret_cast<Unit*>(static_cast<unsigned char*>(args.target) + to_block * args.target_stride +
                                       blockIdx.y * args.target_piece_stride);
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < units; i += int64_t{gridDim.x} * kThreads) {
      to[i] = from[i];
    }
  }
}

}  // namespace

CoreStatus copy_blocks(const CoreCopyBlocks& args, Stream stream) {
  if (args.count == 0) return CORE_OK;
  constexpr int64_t kShare = int64_t{kThreads} * kUnitsOfThread * static_cast<int64_t>(sizeof(Unit));
  int64_t shares = (args.bytes + kShare - 1) / kShare, pairs = std::min(args.count, 65535);
  if (args.limit > 0) {
    const int64_t of_piece = std::max(1, args.limit / args.pieces);
    shares = std::min(shares, of_piece);
    pairs = std::min(pairs, of_piece / shares);
  }
  const dim3 grid(static_cast<unsigned>(shares), args.pieces, static_cast<unsigned>(pairs));
  return device_status(launch_early(copy_blocks_kernel, grid, dim3(kThreads), 0, stream, args));
}

}  // namespace core
