/* The device ops (core_device.h) on rows: norms, quantization, gates, gathers, products with quantized matrices, and
 * sampling. */
#ifndef HEADRACE_CORE_DEVICE_ROWS_H_
#define HEADRACE_CORE_DEVICE_ROWS_H_

#include "core.h"
#include "core_sampling.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- norms ---- */

/* RMSNorm of each row: out = in * rsqrt(mean(in^2) + eps) * weight, where in = x or, with a residual, x + residual,
 * which is first rounded to the dtype and stored in residual_out. */
typedef struct CoreRmsNorm {
  const void* x;        /* [rows, hidden] */
  const void* residual; /* [rows, hidden]; null: none */
  const void* weight;   /* [hidden] */
  void* out;            /* [rows, hidden]; may be x */
  void* residual_out;   /* [rows, hidden]; may be residual; null if and only if residual is */
  int64_t rows;         /* 0 ... 2^31 - 1; 0: no-op, pointers may be null */
  int64_t hidden;       /* 1 ... 2^31 - 1 */
  float eps;            /* finite, not negative */
  int32_t dtype;        /* CoreDtype of all five buffers */
} CoreRmsNorm;

/* LayerNorm of each row: out = (x - mean(x)) * rsqrt(variance(x) + eps) * weight + bias. */
typedef struct CoreLayerNormRows {
  const void* x;      /* [rows, hidden] */
  const void* weight; /* [hidden] */
  const void* bias;   /* [hidden]; null: none */
  void* out;          /* [rows, hidden]; may be x */
  int64_t rows;       /* 0 ... 2^31 - 1; 0: no-op, pointers may be null */
  int64_t hidden;     /* 1 ... 2^31 - 1 */
  float eps;          /* finite, not negative */
  int32_t dtype;      /* CoreDtype of all four buffers */
} CoreLayerNormRows;

/* ---- quantized rows ---- */

/* Eight bits per element with one scale per row: value = code * scale. The row's largest magnitude gets the largest
 * code. Codes are rounded to nearest, ties to even. If a row is not finite, neither is its scale. */
typedef enum CoreRowCodes {
  CORE_ROW_CODES_INT8 = 1, /* -127 ... 127 */
  CORE_ROW_CODES_FP8 = 2,  /* e4m3, at most 448 */
} CoreRowCodes;

/* Quantize the rows of x. */
typedef struct CoreQuantizeRows {
  const void* x; /* [rows, width] */
  void* out;     /* [rows, width] one code per byte */
  float* scales; /* [rows] */
  int64_t rows;  /* 0 ... 2^31 - 1; 0, here and below: no-op, pointers may be null */
  int64_t width; /* 1 ... 2^31 - 1 */
  int32_t dtype; /* CoreDtype of x */
  int32_t codes; /* CoreRowCodes */
} CoreQuantizeRows;

/* core_rms_norm with a quantized output; the normalized rows are not rounded to the dtype first. */
typedef struct CoreRmsNormCodes {
  const void* x;        /* as in CoreRmsNorm */
  const void* residual; /* null: none */
  const void* weight;
  void* residual_out; /* null if and only if residual is */
  void* out;          /* [rows, hidden] one code per byte */
  float* scales;      /* [rows] */
  int64_t rows;
  int64_t hidden;
  float eps;
  int32_t dtype; /* CoreDtype of x, residual, weight and residual_out */
  int32_t codes; /* CoreRowCodes */
} CoreRmsNormCodes;

/* out = activation(gate) * up, element by element, or activation(gate). Gate and up may be slices of one projection. */
typedef struct CoreGatedRows {
  const void* gate;    /* [rows, width], rows gate_stride apart */
  const void* up;      /* [rows, width], rows up_stride apart; null: none, which counts as 1 */
  void* out;           /* [rows, width] of the dtype, or one code per byte */
  float* scales;       /* [rows] if quantized; else null */
  int64_t rows;        /* 0 ... 2^31 - 1 */
  int64_t width;       /* 1 ... 2^31 - 1 */
  int64_t gate_stride; /* elements, at least width */
  int64_t up_stride;
  int32_t dtype;      /* CoreDtype of gate and up */
  int32_t activation; /* CoreGate */
  int32_t codes;      /* CoreRowCodes of out; 0: not quantized */
} CoreGatedRows;

/* Dequantize the result of an int8 matrix product: out = sum * row scale * column scale + bias. */
typedef struct CoreScaledSums {
  const int32_t* sums;     /* [rows, width] */
  const float* row_scales; /* [rows] */
  const float* scales;     /* [width] */
  const void* bias;        /* [width] of the dtype; null: none */
  void* out;               /* [rows, width] of the dtype */
  int64_t rows;            /* 0 ... 2^31 - 1 */
  int64_t width;           /* 1 ... 2^31 - 1 */
  int32_t dtype;           /* CoreDtype */
} CoreScaledSums;

/* ---- gathered rows ---- */

/* out[i] = table[ids[i]]; a row of NaN if the id is out of range. */
typedef struct CoreGatherRows {
  const void* table;  /* [count, width] */
  const int32_t* ids; /* [rows] */
  void* out;          /* [rows, width] */
  int64_t rows;       /* 0 ... 2^31 - 1 */
  int64_t width;      /* 1 ... 2^31 - 1 */
  int64_t count;      /* 1 ... 2^31 - 1 */
  int32_t dtype;      /* CoreDtype */
} CoreGatherRows;

/* ---- quantized matrices ---- */

/* A quantized matrix [outputs, inputs], packed for tensor cores: weight = scale * (code - zero) + offset, with a scale
 * and an offset per group of inputs. The caller owns data; only core_quantized_pack writes it, and its layout is
 * specific to this version of the library. */
typedef struct CoreQuantized {
  const void* data; /* core_quantized_bytes() bytes, aligned to 16 */
  int64_t outputs;  /* 1 ... 2^31 - 1 */
  int64_t inputs;   /* 1 ... 2^31 - 1 */
  int32_t bits;     /* per code: 8 or 4 */
  int32_t group;    /* inputs per scale: 32, 64 or 128, or 0: all inputs */
  int32_t scales;   /* CoreDtype of scales and offsets: float32 or float16 */
  int32_t offsets;  /* 1: groups have offsets, 0: none */
  int32_t zero;     /* zero point: 0 ... 255, or 0 ... 15 with 4 bits */
  int32_t dtype;    /* CoreDtype of inputs and outputs of products: bfloat16 or float16 */
} CoreQuantized;

/* Arguments of core_quantized_pack, which packs rows first_row ... first_row + rows - 1. All buffers are in host
 * memory, the matrix's data too; the caller then copies that to the device. */
typedef struct CoreQuantizedPack {
  const CoreQuantized* matrix; /* its data is written */
  const uint8_t* codes;        /* [rows, inputs] */
  const float* row_scales;     /* [rows, groups] */
  const float* row_offsets;    /* [rows, groups]; null if and only if the matrix has no offsets */
  int64_t first_row;           /* a multiple of 64 */
  int64_t rows;                /* a multiple of 64, or up to the last row */
} CoreQuantizedPack;

/* Return the bytes that data needs; 0 if the description is invalid. */
CORE_API int64_t core_quantized_bytes(const CoreQuantized* matrix);
/* Pack rows. Several threads may pack different rows at once. The memory need not be zeroed. */
CORE_API CoreStatus core_quantized_pack(const CoreQuantizedPack* pack);
/* Write one dequantized row of a matrix in host memory as float32 [inputs]. */
CORE_API CoreStatus core_quantized_row(const CoreQuantized* matrix, int64_t row, float* values);

typedef enum CoreQuantizedLimit {
  CORE_QUANTIZED_ROWS = 64, /* maximum rows of core_quantized_linear */
} CoreQuantizedLimit;

/* out = x * matrix^T + bias, for at most CORE_QUANTIZED_ROWS rows. */
typedef struct CoreQuantizedLinear {
  CoreQuantized matrix;
  const void* x;    /* [rows, inputs] of the matrix's dtype */
  const void* bias; /* [outputs] of the dtype; null: none */
  void* out;        /* [rows, outputs] of the dtype */
  float* scratch;   /* [splits, rows, outputs]; may be null if splits is 1 */
  int64_t rows;     /* 0 ... CORE_QUANTIZED_ROWS */
  int32_t splits;   /* thread blocks that split the sum of an output: 1 ... 65535; they are added in a fixed order */
} CoreQuantizedLinear;

/* Return the number of splits that keeps this many multiprocessors busy; 0 if the description is invalid. */
CORE_API int32_t core_quantized_splits(const CoreQuantized* matrix, int64_t rows, int32_t multiprocessors);

/* Dequantize rows of the matrix: out[i] = row ids[i], or row first + i without ids; a row of NaN if the row is out of
 * range. */
typedef struct CoreUnpackRows {
  CoreQuantized matrix;
  const int32_t* ids; /* [rows]; null: none */
  void* out;          /* [rows, inputs] of the matrix's dtype */
  int64_t rows;       /* 0 ... 2^31 - 1 */
  int64_t first;      /* 0 ... 2^31 - 1; 0 with ids */
} CoreUnpackRows;

/* ---- sampling ---- */

/* Sample a token from each row of logits. The arrays of CoreSampling and CoreLogitChanges are in device memory too; the
 * caller owns them until the stream has passed the op. */
typedef struct CoreSampleRows {
  const void* logits;           /* [rows, vocab] */
  const CoreSampling* sampling; /* [rows] */
  CoreSampled* sampled;         /* [rows] */
  int32_t* top_ids;             /* [rows, CORE_TOP_LOGPROBS] as in CoreBatch; null if no row requests any */
  double* top_logprobs;         /* likewise */
  float* scratch;               /* [rows, vocab] */
  int64_t rows;                 /* 0 ... 2^31 - 1 */
  int64_t vocab;                /* 1 ... 2^31 - 1 */
  int32_t dtype;                /* CoreDtype of logits */
} CoreSampleRows;

#define CORE_DEVICE_ROW_OPS(OP)             \
  OP(rms_norm, CoreRmsNorm)                 \
  OP(layer_norm_rows, CoreLayerNormRows)    \
  OP(quantize_rows, CoreQuantizeRows)       \
  OP(rms_norm_codes, CoreRmsNormCodes)      \
  OP(gated_rows, CoreGatedRows)             \
  OP(scaled_sums, CoreScaledSums)           \
  OP(gather_rows, CoreGatherRows)           \
  OP(quantized_linear, CoreQuantizedLinear) \
  OP(unpack_rows, CoreUnpackRows)           \
  OP(sample_rows, CoreSampleRows)

#ifdef __cplusplus
}
#endif

#endif /* HEADRACE_CORE_DEVICE_ROWS_H_ */
