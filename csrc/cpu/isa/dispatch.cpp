#include "cpu/isa/dispatch.h"

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <initializer_list>

namespace core {
namespace {

constexpr uint64_t kAvxState = 0x06;     // XCR0: SSE and AVX
constexpr uint64_t kAvx512State = 0xe6;  // and opmasks, ZMM
constexpr uint64_t kAmxState = 0x600e6;  // and tile configuration, tile data

struct Leaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;

  Leaf(uint32_t leaf, uint32_t sub) { __get_cpuid_count(leaf, sub, &eax, &ebx, &ecx, &edx); }
};

bool has(uint32_t word, std::initializer_list<int> bits) {
  for (int bit : bits) {
    if ((word >> bit & 1u) == 0) return false;
  }
  return true;
}

__attribute__((target("xsave"))) uint64_t enabled_state() {
  return _xgetbv(0);
}

// Return the bits of all instruction sets of this machine: 1 << CoreIsa.
uint32_t detect() {
  const Leaf basic(1, 0), extended(7, 0), more(7, 1);
  const bool os_saves = has(basic.ecx, {27});  // OSXSAVE
  const uint64_t state = os_saves ? enabled_state() : 0;
  const bool avx2 = has(basic.ecx, {12, 28, 29}) && has(extended.ebx, {5});  // FMA, AVX, F16C; AVX2
  if (!avx2 || (state & kAvxState) != kAvxState) return 0;
  uint32_t found = 1u << CORE_ISA_AVX2;
  if (has(more.eax, {4})) found |= 1u << CORE_ISA_AVX2_VNNI;  // AVX_VNNI
  const bool avx512 = has(extended.ebx, {16, 17, 30, 31});    // F, DQ, BW, VL
  if (!avx512 || (state & kAvx512State) != kAvx512State) return found;
  found |= 1u << CORE_ISA_AVX512;
  if (!has(extended.ecx, {11})) return found;  // AVX512_VNNI
  found |= 1u << CORE_ISA_AVX512_VNNI;
  if (!has(more.eax, {5})) return found;  // AVX512_BF16
  found |= 1u << CORE_ISA_AVX512_BF16;
  const bool amx = has(extended.edx, {22, 24, 25});  // AMX_BF16, AMX_TILE, AMX_INT8
  if (amx && (state & kAmxState) == kAmxState && allow_amx()) found |= 1u << CORE_ISA_AMX;
  return found;
}

uint32_t all_isas() {
  static const uint32_t found = detect();
  return found;
}

}  // namespace

bool allow_amx() {
  constexpr int kArchReqXcompPerm = 0x1023;
  constexpr int kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

CoreIsa best_isa() {
  int isa = CORE_ISA_AMX;
  while (isa > CORE_ISA_NONE && !has_isa(isa)) isa--;
  return static_cast<CoreIsa>(isa);
}

bool has_isa(int32_t isa) {
  return isa > CORE_ISA_NONE && isa <= CORE_ISA_AMX && (all_isas() >> isa & 1u) != 0;
}

const Kernels& kernels_of(CoreIsa isa) {
  switch (isa) {
    case CORE_ISA_AMX:
      return kernels_amx();
    case CORE_ISA_AVX512_BF16:
      return kernels_avx512_bf16();
    case CORE_ISA_AVX512_VNNI:
      return kernels_avx512_vnni();
    case CORE_ISA_AVX512:
      return kernels_avx512();
    case CORE_ISA_AVX2_VNNI:
      return kernels_avx2_vnni();
    default:
      return kernels_avx2();
  }
}

}  // namespace core
