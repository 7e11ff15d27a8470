// Quantization of rows of keys and values, the same on every device.
#pragma once

#include <stdint.h>

#include "common/both.h"

namespace core {

constexpr float kMostInt8 = 255.0f, kMostUint4 = 15.0f;  // the largest codes

// An entry is low + step * code.
struct alignas(8) CodeScale {
  float step;
  float low;
};

// Return the scale that maps the smallest entry of a row to code 0 and the largest to `most`.
CORE_BOTH CodeScale scale_between(float lowest, float highest, float most) {
  return {(highest - lowest) / most, lowest};
}

CORE_BOTH float nearest(float value) {
#ifdef __CUDA_ARCH__
  return rintf(value);
#else
  return __builtin_rintf(value);
#endif
}

CORE_BOTH uint8_t nearest_code(float entry, CodeScale scale, float most) {
  const float code = scale.step > 0 ? nearest((entry - scale.low) / scale.step) : 0.0f;
  return static_cast<uint8_t>(code < most ? code : most);
}

}  // namespace core
