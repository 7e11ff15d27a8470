// The layout of keys and values on the device (CoreKvBlocks), and loads of entries as operands of tensor cores.
#pragma once

#include <cstdint>

#include "common/both.h"
#include "common/quant.h"
#include "core_device_kv.h"
#include "cuda/number.h"

namespace core {

constexpr int kChunk = 16;  // tokens that attention takes at once; every block holds whole chunks

// Division of non-negative numbers by the same divisor many times, without the twenty instructions of a division.
class Divisor {
 public:
  __device__ explicit Divisor(int divisor)
      : divisor_(divisor), inverse_(0xffffffffu / static_cast<unsigned>(divisor)) {}

  __device__ int quotient(int number) const {
    const int below = static_cast<int>(__umulhi(static_cast<unsigned>(number), inverse_));  // by at most 1
    return number - below * divisor_ >= divisor_ ? below + 1 : below;
  }

  __device__ int remainder(int number) const { return number - quotient(number) * divisor_; }

 private:
  int divisor_;
  unsigned inverse_;
};

// Storage formats. kCentre is subtracted from codes, so that the rest is small and exact in bfloat16; kSpread: heads
// are Hadamard rotated.
struct Bf16Kv {
  static constexpr int kBits = 16;
  static constexpr bool kSpread = false;
};

struct Int8Kv {
  static constexpr int kBits = 8;
  static constexpr bool kSpread = false;
  static constexpr float kCentre = 128.0f, kMost = kMostInt8;
};

struct Uint4Kv {
  static constexpr int kBits = 4;
  static constexpr bool kSpread = true;
  static constexpr float kCentre = 8.0f, kMost = kMostUint4;
};

template <typename Format>
constexpr bool kHasCodes = Format::kBits < 16;

enum class Side { kKeys = 0, kValues = 1 };

// Addresses in the blocks. Offsets are in bytes.
template <typename Format>
struct KvPlaces {
  const CoreKvBlocks& blocks;

  __device__ int64_t row_bytes() const { return blocks.head_dim * Format::kBits / 8; }
  __device__ int64_t rows() const { return int64_t{blocks.kv_heads} * blocks.block_size; }  // of one side of a block

  __device__ unsigned char* block(int32_t number) const {
    return static_cast<unsigned char*>(blocks.data) + number * blocks.stride;
  }

  // Return the row of a token from its KV head and its slot in the block.
  __device__ unsigned char* row(int32_t number, Side side, int head, int slot) const {
    const int64_t index = static_cast<int>(side) * rows() + int64_t{head} * blocks.block_size + slot;
    return block(number) + index * row_bytes();
  }

  __device__ CodeScale* scale(int32_t number, Side side, int head, int slot) const {
    const int64_t index = static_cast<int>(side) * rows() + int64_t{head} * blocks.block_size + slot;
    return reinterpret_cast<CodeScale*>(block(number) + 2 * rows() * row_bytes()) + index;
  }
};

// The scale of an entry in terms of code - kCentre: entry = middle + step * (code - kCentre).
struct CentredScale {
  float step;
  float middle;
};

template <typename Format>
__device__ CentredScale centred(CodeScale scale) {
  return {scale.step, scale.low + scale.step * Format::kCentre};
}

__device__ inline uint32_t pair_of(float first, float second, BFloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ inline uint32_t pair_of(float first, float second, Float16) {
  const __half2 pair = __floats2half2_rn(first, second);
  return reinterpret_cast<const uint32_t&>(pair);
}

// Two numbers of type T in a word, the first in the low half.
template <typename T>
__device__ uint32_t pair_of(float first, float second) {
  return pair_of(first, second, T{});
}

template <typename T>
__device__ uint32_t pair_difference(uint32_t a, uint32_t b) {
  using Pair = std::conditional_t<std::is_same_v<T, BFloat16>, __nv_bfloat162, __half2>;
  const Pair difference = __hsub2(reinterpret_cast<const Pair&>(a), reinterpret_cast<const Pair&>(b));
  return reinterpret_cast<const uint32_t&>(difference);
}

// Width neighbouring entries of a row, in pairs of BFloat16, or of Float16 in formats with codes: there code - kCentre.
template <int Width>
using Entries = Pack<uint32_t, Width / 2>;

// Code number `index` of a word of bytes, less the centre. 2^23 + code is a float with the code in its low byte.
__device__ inline float centred_byte(uint32_t word, int index) {
  const uint32_t number = __byte_perm(word, 0x4b000000u, 0x7440u | index);
  return __uint_as_float(number) - (8388608.0f + Int8Kv::kCentre);
}

// Codes `index` and the next. 1024 + code is a Float16 with the code in its low byte.
template <typename T>
__device__ uint32_t centred_bytes(uint32_t word, int index) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return pair_of<T>(centred_byte(word, index), centred_byte(word, index + 1));
  } else {
    const uint32_t numbers = __byte_perm(word, 0x64646464u, 0x4040u | index | (index + 1) << 8);
    return pair_difference<T>(numbers, 0x64806480u);
  }
}

// The words of a row that hold Width entries; for Uint4Kv the one word that contains them.
template <typename Format, int Width>
using RawWord = std::conditional_t<Format::kBits == 8 && Width == 2, uint16_t, uint32_t>;
template <typename Format, int Width>
using Raw =
    Pack<RawWord<Format, Width>, Format::kBits == 4 ? 1 : Width * Format::kBits / 8 / sizeof(RawWord<Format, Width>)>;

// Entries first ... first + Width - 1 of a row, as they are stored; first is a multiple of Width, which is 2, 4 or 8.
template <typename Format, int Width>
__device__ Raw<Format, Width> load_raw(const unsigned char* row, int first) {
  const int offset = Format::kBits == 4 ? first / 8 * 4 : first * Format::kBits / 8;
  return *reinterpret_cast<const Raw<Format, Width>*>(row + offset);
}

template <int Width, typename T>
__device__ Entries<Width> widened_bytes(Raw<Int8Kv, Width> words) {
  constexpr int kWordBytes = sizeof(RawWord<Int8Kv, Width>);
  Entries<Width> entries;
#pragma unroll
  for (int i = 0; i < Width / 2; i++) {
    entries.at[i] = centred_bytes<T>(words.at[i * 2 / kWordBytes], i * 2 % kWordBytes);
  }
  return entries;
}

// 128 + code as a BFloat16, and 1024 + code as a Float16, have the code in their low four bits.
template <int Width, typename T>
__device__ Entries<Width> widened_nibbles(uint32_t word, int first) {
  constexpr uint32_t kZeros = std::is_same_v<T, BFloat16> ? 0x43004300u : 0x64006400u;
  constexpr uint32_t kCentres = kZeros | 0x00080008u;
  word >>= first % 8 * 2;
  Entries<Width> entries;
#pragma unroll
  for (int i = 0; i < Width / 2; i++) {
    entries.at[i] = pair_difference<T>((word >> (i * 4) & 0x000f000fu) | kZeros, kCentres);
  }
  return entries;
}

// Convert stored entries to operands.
template <typename Format, int Width, typename T = BFloat16>
__device__ Entries<Width> widened(Raw<Format, Width> raw, int first) {
  if constexpr (std::is_same_v<Format, Int8Kv>) {
    return widened_bytes<Width, T>(raw);
  } else if constexpr (std::is_same_v<Format, Uint4Kv>) {
    return widened_nibbles<Width, T>(raw.at[0], first);
  } else {
    static_assert(std::is_same_v<T, BFloat16>);
    return raw;
  }
}

template <typename Format, int Width, typename T = BFloat16>
__device__ Entries<Width> load_entries(const unsigned char* row, int first) {
  return widened<Format, Width, T>(load_raw<Format, Width>(row, first), first);
}

}  // namespace core
