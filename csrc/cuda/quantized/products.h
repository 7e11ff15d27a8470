// The kernels of products with a quantized matrix, of which linear.cu chooses one by the number of rows.
#pragma once

#include <cstdint>

#include "core_device.h"
#include "cuda/device.h"
#include "cuda/quantized/layout.h"

namespace core {

// Enqueue a product of at most CORE_QUANTIZED_FEW_ROWS rows, of which every block takes all; return the runtime's error
// number. With several splits, their sums are in the scratch buffer afterwards, and `out` is not written.
template <typename T>
int few_rows(const CoreQuantizedLinear& args, Stream stream);

// The same for any number of rows, in tiles of rows and outputs.
template <typename T>
int many_rows(const CoreQuantizedLinear& args, Stream stream);

// Return how many splits keep the multiprocessors busy; less than 1 where there is too little to split.
int64_t few_rows_splits(const QuantizedLayout& layout, int64_t rows, int32_t multiprocessors);
int64_t many_rows_splits(const QuantizedLayout& layout, int64_t rows, int32_t multiprocessors);

}  // namespace core
