// CUDA's atomics and bit functions, under their own names.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

namespace cusim {

// Atomically replace *place by change(*place); return the old value.
template <typename T, typename Change>
T atomic_update(T* place, Change change) {
  T before;
  __atomic_load(place, &before, __ATOMIC_RELAXED);
  T after = change(before);
  while (!__atomic_compare_exchange(place, &before, &after, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
    after = change(before);
  }
  return before;
}

}  // namespace cusim

template <typename T>
T atomicAdd(T* place, std::type_identity_t<T> value) {
  return cusim::atomic_update(place, [=](T before) { return static_cast<T>(before + value); });
}

template <typename T>
T atomicMax(T* place, std::type_identity_t<T> value) {
  return cusim::atomic_update(place, [=](T before) { return std::max(before, value); });
}

template <typename T>
T atomicMin(T* place, std::type_identity_t<T> value) {
  return cusim::atomic_update(place, [=](T before) { return std::min(before, value); });
}

template <typename T>
T atomicOr(T* place, std::type_identity_t<T> value) {
  return cusim::atomic_update(place, [=](T before) { return static_cast<T>(before | value); });
}

template <typename T>
T atomicExch(T* place, std::type_identity_t<T> value) {
  return cusim::atomic_update(place, [=](T) { return value; });
}

template <typename T>
T atomicCAS(T* place, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return cusim::atomic_update(place, [=](T before) { return before == expected ? value : before; });
}

inline int __popc(unsigned bits) {
  return std::popcount(bits);
}

inline int __clz(int bits) {
  return std::countl_zero(static_cast<unsigned>(bits));
}

inline int __ffs(int bits) {
  return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned>(bits)) + 1;
}

inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}

inline unsigned __float_as_uint(float value) {
  return std::bit_cast<unsigned>(value);
}

inline float __uint_as_float(unsigned bits) {
  return std::bit_cast<float>(bits);
}

// Byte i of the result is the byte of high:low whose number is in the low three bits of nibble i of the selector; if
// the nibble's fourth bit is set, that byte's sign is replicated instead.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; i++) {
    const unsigned nibble = selector >> i * 4 & 15u;
    const auto byte = static_cast<unsigned char>(bytes >> (nibble & 7u) * 8);
    result |= static_cast<unsigned>((nibble & 8u) == 0 ? byte : byte >> 7 ? 0xff : 0) << i * 8;
  }
  return result;
}

template <typename T>
T __ldg(const T* place) {
  return *place;
}
