// Conversion of codes to fragments for tensor cores: exact, with two or three instructions per two codes.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda/number.h"

namespace core {

template <typename T>
struct PairOf;
template <>
struct PairOf<BFloat16> {
  using Type = __nv_bfloat162;
};
template <>
struct PairOf<Float16> {
  using Type = __half2;
};

// The sum or the difference of two pairs of elements.
template <typename T, bool Difference>
__device__ uint32_t combine_pairs(uint32_t a, uint32_t b) {
  typename PairOf<T>::Type x, y;
  memcpy(static_cast<void*>(&x), &a, sizeof x);
  memcpy(static_cast<void*>(&y), &b, sizeof y);
  const auto z = Difference ? __hsub2(x, y) : __hadd2(x, y);
  uint32_t bits;
  memcpy(&bits, &z, sizeof bits);
  return bits;
}

// Twice the same number.
template <typename T>
__device__ uint32_t pair_of(float value) {
  const T rounded = from_float<T>(value);
  uint16_t bits;
  memcpy(&bits, &rounded, sizeof bits);
  return bits * 0x00010001u;
}

// A number whose last bits count in ones: 128 of bfloat16, 1024 of float16. Codes are put into them.
template <typename T>
constexpr uint32_t kCounting = std::is_same_v<T, BFloat16> ? 0x43004300u : 0x64006400u;
template <typename T>
constexpr float kCountingFrom = std::is_same_v<T, BFloat16> ? 128.0f : 1024.0f;

// Converts codes, less their zero point, to fragments.
template <typename T, int Bits>
struct Decoder {
  uint32_t bias;

  // Bits 8 of bfloat16, which has 7 bits to count with: s = low bits - 128 * top bit of what is stored is code - 128.
  static constexpr bool kSigned = Bits == 8 && std::is_same_v<T, BFloat16>;

  __device__ explicit Decoder(int32_t zero)
      : bias(pair_of<T>(kSigned ? 128.0f - static_cast<float>(zero) : kCountingFrom<T> + static_cast<float>(zero))) {}

  // Fragment A of 16 inputs from a lane's codes.
  __device__ void decode(const uint32_t* words, uint32_t (&a)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if constexpr (Bits == 4) {
        a[i] = combine_pairs<T, true>((words[0] >> i * 4 & 0x000f000fu) | kCounting<T>, bias);
      } else {
        const uint32_t pair = words[i / 2] >> i % 2 * 8;
        if constexpr (kSigned) {
          const uint32_t low = (pair & 0x007f007fu) | kCounting<T>, top = (pair & 0x00800080u) | kCounting<T>;
          a[i] = combine_pairs<T, false>(combine_pairs<T, true>(low, top), bias);
        } else {
          a[i] = combine_pairs<T, true>(((pair & 0x00ff00ffu) ^ 0x00800080u) | kCounting<T>, bias);
        }
      }
    }
  }
};

}  // namespace core
