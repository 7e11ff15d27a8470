// All kernels, for the instruction set that the including file is compiled for. What is here may use no inline
// function or template of any library: the linker keeps one copy of those, compiled for whichever file came first.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "cpu/kernels.h"
#include "cpu/number.h"
#include "cpu/weight.h"

namespace {

using namespace core;

#include "cpu/vec.h"
// The kernels proper.
#include "cpu/kernels/rows.inl"

const Kernels kTable = {kEmbed, kNorm, {}, {}, {}, kGated, kSelect, {}};

}  // namespace
