// Numbers of a row as codes of eight bits with one scale: what every library computes.
#pragma once

#include "common/both.h"

namespace core {

constexpr float kMostInt8 = 127.0f;
constexpr float kMostFp8 = 448.0f;

// Below this, the factor from numbers to codes would not be finite: such a row becomes zeros.
constexpr float kLeastMagnitude = 1e-35f;

struct RowFactors {
  float scale;   // from codes to numbers
  float factor;  // from numbers to codes
};

// Of a row whose largest magnitude is this, where `most` is the largest code.
CORE_BOTH RowFactors row_factors(float largest, float most) {
  if (largest < kLeastMagnitude) return {0.0f, 0.0f};
  return {largest / most, most / largest};
}

}  // namespace core
