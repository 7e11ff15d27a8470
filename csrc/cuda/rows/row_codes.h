// Quantization of a row. The row is read twice, the second time from a cache.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "common/row_codes.h"
#include "core_device.h"
#include "cuda/number.h"
#include "cuda/reduce.h"

namespace core {

// The code of a number that has been multiplied by the row's factor.
__device__ inline uint8_t code_of(float scaled, int32_t codes) {
  if (codes == CORE_ROW_CODES_FP8) return __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, __NV_E4M3);
  const float whole = fminf(fmaxf(rintf(scaled), -kMostInt8), kMostInt8);
  return static_cast<uint8_t>(static_cast<int8_t>(static_cast<int>(whole)));
}

// Quantize one row. `values(i)` returns the Pack<float, Width> number i of the row, i < packs. Every thread of the
// block must call it.
template <int Width, typename Values>
__device__ void put_row_codes(const Values& values, int64_t packs, void* out, float* scale, int32_t codes) {
  float largest = 0.0f;
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    const Pack<float, Width> pack = values(i);
#pragma unroll
    for (int k = 0; k < Width; k++) largest = larger_or_nan(largest, fabsf(pack.at[k]));
  }
  const float most = codes == CORE_ROW_CODES_FP8 ? kMostFp8 : kMostInt8;
  const RowFactors factors = row_factors(block_largest(largest), most);
  if (threadIdx.x == 0) *scale = factors.scale;
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    const Pack<float, Width> pack = values(i);
    Pack<uint8_t, Width> quantized;
#pragma unroll
    for (int k = 0; k < Width; k++) quantized.at[k] = code_of(pack.at[k] * factors.factor, codes);
    static_cast<Pack<uint8_t, Width>*>(out)[i] = quantized;
  }
}

// A pack of any format in float32.
template <typename T, int Width>
__device__ Pack<float, Width> in_float(Pack<T, Width> pack) {
  Pack<float, Width> result;
#pragma unroll
  for (int k = 0; k < Width; k++) result.at[k] = to_float(pack.at[k]);
  return result;
}

}  // namespace core
