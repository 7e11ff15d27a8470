// All kernels, for the instruction set that the including file is compiled for. This code must not use inline functions
// or templates of any library: the linker keeps one copy of those, possibly compiled for another instruction set.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "common/philox.h"
#include "common/quant.h"
#include "common/sampling_math.h"
#include "common/hadamard.h"
#include "cpu/kernels.h"
#include "cpu/kv.h"
#include "cpu/number.h"
#include "cpu/weight.h"

namespace {

using namespace core;

// In order of dependency.
// clang-format off
#include "cpu/vec.h"
#include "cpu/kernels/rows.inl"
#include "cpu/kernels/exchanges.inl"
#include "cpu/kernels/adapt.inl"
#include "cpu/kernels/linear/rows.inl"
#include "cpu/kernels/linear/widen.inl"
#include "cpu/kernels/linear/float.inl"
#include "cpu/kernels/linear/scales.inl"
#include "cpu/kernels/linear/neighbours.inl"
#include "cpu/kernels/linear/integers.inl"
#ifdef __AVX512BF16__
#include "cpu/kernels/linear/pairs.inl"
#endif
#ifdef __AMX_BF16__
#include "cpu/kernels/linear/codes.inl"
#include "cpu/kernels/linear/whole.inl"
#endif
#include "cpu/kernels/linear/linear.inl"
#include "cpu/kernels/linear/tiles.inl"
#include "cpu/kernels/experts/choose.inl"
#include "cpu/kernels/experts/route.inl"
#include "cpu/kernels/experts/experts.inl"
#include "cpu/kernels/hadamard.inl"
#include "cpu/kernels/rope_append.inl"
#include "cpu/kernels/attention/weights.inl"
#ifdef __AVX512BF16__
#include "cpu/kernels/attention/pairs.inl"
#endif
#include "cpu/kernels/attention/pages.inl"
#include "cpu/kernels/attention/products.inl"
#ifdef __AMX_BF16__
#include "cpu/kernels/attention/tiles.inl"
#endif
#include "cpu/kernels/attention/blocks.inl"
#include "cpu/kernels/attention/codes.inl"
#include "cpu/kernels/attention/attention.inl"
#include "cpu/kernels/attention/jobs.inl"
#include "cpu/kernels/sampling/random.inl"
#include "cpu/kernels/sampling/cuts.inl"
#include "cpu/kernels/sampling/changes.inl"
#include "cpu/kernels/sampling/sampling.inl"
// clang-format on

#define CORE_OP_KERNEL(op, Args) op##_kernel,
const Kernels kTable = {CORE_PROGRAM_OPS(CORE_OP_KERNEL)};
#undef CORE_OP_KERNEL

}  // namespace
