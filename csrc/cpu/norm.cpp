// RMSNorm in plain loops that the compiler vectorises for any x86-64.
#include <cmath>
#include <cstdint>

#include "cpu/number.h"
#include "cpu/ops.h"

namespace core {
namespace {

// sum = a + b, element by element; sum may be a or b.
template <typename T>
void add_row(const T* a, const T* b, T* sum, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; i++) sum[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));
}

// Independent partial sums: the compiler may keep them in vector registers, and each stays short enough to be exact
// to about one rounding.
template <typename T>
float sum_of_squares(const T* row, int64_t n) {
  constexpr int kLanes = 32;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; lane++) lanes[lane] += to_float(row[i + lane]) * to_float(row[i + lane]);
  }
  for (int lane = 0; i < n; i++, lane++) lanes[lane] += to_float(row[i]) * to_float(row[i]);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; lane++) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// out = in * scale * weight, element by element; out may be in.
template <typename T>
void scale_row(const T* in, const T* weight, T* out, float scale, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; i++) out[i] = from_float<T>(to_float(in[i]) * scale * to_float(weight[i]));
}

template <typename T>
void rms_norm_rows(const CoreRmsNorm& args) {
  const auto* weight = static_cast<const T*>(args.weight);
  for (int64_t row = 0; row < args.rows; row++) {
    const int64_t offset = row * args.hidden;
    const T* in = static_cast<const T*>(args.x) + offset;
    if (args.residual != nullptr) {
      T* residual_out = static_cast<T*>(args.residual_out) + offset;
      add_row(in, static_cast<const T*>(args.residual) + offset, residual_out, args.hidden);
      in = residual_out;
    }
    const float mean = sum_of_squares(in, args.hidden) / static_cast<float>(args.hidden);
    scale_row(in, weight, static_cast<T*>(args.out) + offset, 1.0f / std::sqrt(mean + args.eps), args.hidden);
  }
}

}  // namespace

void rms_norm(const CoreRmsNorm& args) {
  switch (args.dtype) {
    case CORE_FLOAT32:
      return rms_norm_rows<float>(args);
    case CORE_BFLOAT16:
      return rms_norm_rows<BFloat16>(args);
    case CORE_FLOAT16:
      return rms_norm_rows<Float16>(args);
  }
}

}  // namespace core
