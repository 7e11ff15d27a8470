// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011), one counter at a time.
#pragma once

#include <stdint.h>

#include "common/both.h"

namespace core {

constexpr uint32_t kPhiloxMultiply0 = 0xD2511F53u, kPhiloxMultiply1 = 0xCD9E8D57u;
constexpr uint32_t kPhiloxKey0 = 0x9E3779B9u, kPhiloxKey1 = 0xBB67AE85u;
constexpr int kPhiloxRounds = 10;

struct PhiloxWords {
  uint32_t word[4];
};

// The four random words of a counter under a key.
CORE_BOTH PhiloxWords philox(PhiloxWords counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; round++) {
    const uint64_t product0 = static_cast<uint64_t>(counter.word[0]) * kPhiloxMultiply0;
    const uint64_t product1 = static_cast<uint64_t>(counter.word[2]) * kPhiloxMultiply1;
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(product0)}};
    key0 += kPhiloxKey0;
    key1 += kPhiloxKey1;
  }
  return counter;
}

}  // namespace core
