// Quantization of a row to 8-bit codes with one scale, the same in every library.
#pragma once

#include "common/both.h"

namespace core {

constexpr float kMostInt8 = 127.0f;
constexpr float kMostFp8 = 448.0f;

// Rows with a smaller largest magnitude become zeros: the factor from numbers to codes would not be finite.
constexpr float kLeastMagnitude = 1e-35f;

struct RowFactors {
  float scale;   // from codes to numbers
  float factor;  // from numbers to codes
};

// Return the factors of a row whose largest magnitude is `largest`; `most` is the largest code.
CORE_BOTH RowFactors row_factors(float largest, float most) {
  if (largest < kLeastMagnitude) return {0.0f, 0.0f};
  return {largest / most, most / largest};
}

}  // namespace core
