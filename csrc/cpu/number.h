// The storage formats of the CPU library, with conversions from and to float32. Conversions use selects, not branches,
// so that loops over them vectorize; they round to nearest, ties to even, and preserve infinities and NaN. They are
// always inlined: a copy compiled for one instruction set must not be linked into code for another.
#pragma once

#include <cstdint>

namespace core {

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

[[gnu::always_inline]] inline float to_float(float value) {
  return value;
}

[[gnu::always_inline]] inline float to_float(BFloat16 value) {
  return __builtin_bit_cast(float, uint32_t{value.bits} << 16);
}

[[gnu::always_inline]] inline float to_float(Float16 value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t subnormal =
      __builtin_bit_cast(uint32_t, static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  const uint32_t special = (magnitude << 13) | 0x7f800000u;
  const uint32_t finite = magnitude < 0x0400u ? subnormal : normal;
  return __builtin_bit_cast(float, sign | (magnitude >= 0x7c00u ? special : finite));
}

template <typename T>
T from_float(float value);

template <>
[[gnu::always_inline]] inline float from_float<float>(float value) {
  return value;
}

template <>
[[gnu::always_inline]] inline BFloat16 from_float<BFloat16>(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const uint32_t quiet_nan = bits >> 16 | 0x0040u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<uint16_t>(is_nan ? quiet_nan : rounded)};
}

template <>
[[gnu::always_inline]] inline Float16 from_float<Float16>(float value) {
  constexpr uint32_t kHalf = 0x3f000000u;            // 0.5f, whose last place is the smallest Float16
  constexpr uint32_t kSmallestNormal = 0x38800000u;  // 2^-14
  constexpr uint32_t kTooLarge = 0x47800000u;        // 2^16
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t subnormal = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, magnitude) + 0.5f) - kHalf;
  const uint32_t normal = (magnitude - (112u << 23) + 0x0fffu + (magnitude >> 13 & 1u)) >> 13;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t finite = magnitude < kSmallestNormal ? subnormal : normal;
  return {static_cast<uint16_t>((bits >> 16 & 0x8000u) | (magnitude >= kTooLarge ? special : finite))};
}

}  // namespace core
