/* The ops of core_device.h on rows: norms, codes of rows, gates, gathered rows, products with matrices of codes, and
 * sampling. */
#ifndef HEADRACE_CORE_DEVICE_ROWS_H_
#define HEADRACE_CORE_DEVICE_ROWS_H_

#include "core.h"
#include "core_sampling.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- norms ---- */

/* RMSNorm: out = in * rsqrt(mean(in^2) + eps) * weight, row by row, where in is x,
 * or with a residual x + residual, rounded to the dtype and stored in residual_out first. */
typedef struct CoreRmsNorm {
  const void* x;        /* [rows, hidden] */
  const void* residual; /* [rows, hidden]; null: none */
  const void* weight;   /* [hidden] */
  void* out;            /* [rows, hidden]; may be x */
  void* residual_out;   /* [rows, hidden]; may be residual; null exactly where residual is */
  int64_t rows;         /* 0 ... 2^31 - 1; 0 does nothing, and the pointers may be null */
  int64_t hidden;       /* 1 ... 2^31 - 1 */
  float eps;            /* finite, not negative */
  int32_t dtype;        /* CoreDtype of all five buffers */
} CoreRmsNorm;

/* ---- rows of codes ---- */

/* Eight bits an entry: value = code * scale of its row, where the code of the row's largest magnitude is the largest.
 * Codes are rounded to the nearest, half to even. The scale of a row that is not finite is not finite. */
typedef enum CoreRowCodes {
  CORE_ROW_CODES_INT8 = 1, /* -127 ... 127 */
  CORE_ROW_CODES_FP8 = 2,  /* e4m3, at most 448 */
} CoreRowCodes;

/* Codes of x. */
typedef struct CoreQuantizeRows {
  const void* x; /* [rows, width] */
  void* out;     /* [rows, width] one code a byte */
  float* scales; /* [rows] */
  int64_t rows;  /* 0 ... 2^31 - 1; 0 does nothing, here and below, and the pointers may be null */
  int64_t width; /* 1 ... 2^31 - 1 */
  int32_t dtype; /* CoreDtype of x */
  int32_t codes; /* CoreRowCodes */
} CoreQuantizeRows;

/* Codes of what core_rms_norm gives, before that is rounded to the dtype. */
typedef struct CoreRmsNormCodes {
  const void* x;        /* as in CoreRmsNorm */
  const void* residual; /* null: none */
  const void* weight;
  void* residual_out; /* null exactly where residual is */
  void* out;          /* [rows, hidden] one code a byte */
  float* scales;      /* [rows] */
  int64_t rows;
  int64_t hidden;
  float eps;
  int32_t dtype; /* CoreDtype of x, residual, weight and residual_out */
  int32_t codes; /* CoreRowCodes */
} CoreRmsNormCodes;

/* out = activation(gate) * up, entry by entry. Gate and up may be slices of one projection. */
typedef struct CoreGatedRows {
  const void* gate;    /* [rows, width], rows gate_stride apart */
  const void* up;      /* [rows, width], rows up_stride apart */
  void* out;           /* [rows, width] of the dtype, or one code a byte */
  float* scales;       /* [rows], with codes; else null */
  int64_t rows;        /* 0 ... 2^31 - 1 */
  int64_t width;       /* 1 ... 2^31 - 1 */
  int64_t gate_stride; /* elements, at least width */
  int64_t up_stride;
  int32_t dtype;      /* CoreDtype of gate and up */
  int32_t activation; /* CoreGate */
  int32_t codes;      /* CoreRowCodes of out; 0: out is of the dtype */
} CoreGatedRows;

/* The sums of int8 codes times int8 codes as numbers: out = sum * scale of its row * scale of its column + bias. */
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

/* out[i] = table[ids[i]]. An id that the table does not have gives a row of NaN. */
typedef struct CoreGatherRows {
  const void* table;  /* [count, width] */
  const int32_t* ids; /* [rows] */
  void* out;          /* [rows, width] */
  int64_t rows;       /* 0 ... 2^31 - 1 */
  int64_t width;      /* 1 ... 2^31 - 1 */
  int64_t count;      /* 1 ... 2^31 - 1 */
  int32_t dtype;      /* CoreDtype */
} CoreGatherRows;

/* ---- matrices of codes ---- */

/* A matrix [outputs, inputs], packed for the tensor cores: weight = scale * (code - zero) + offset. Inputs in groups
 * share a scale and an offset. Only core_coded_pack writes what data points to, and only this version of the library
 * reads it. */
typedef struct CoreCoded {
  const void* data; /* core_coded_bytes() bytes, aligned to 16 */
  int64_t outputs;  /* 1 ... 2^31 - 1 */
  int64_t inputs;   /* 1 ... 2^31 - 1 */
  int32_t bits;     /* of a code: 8 or 4 */
  int32_t group;    /* inputs that share a scale: 32, 64 or 128, or 0: all inputs */
  int32_t scales;   /* CoreDtype of scales and offsets: float32 or float16 */
  int32_t offsets;  /* 1: groups have offsets too, 0: none */
  int32_t zero;     /* 0 ... 255, or 15 with 4 bits */
  int32_t dtype;    /* CoreDtype of the rows that it multiplies and of what it gives: bfloat16 or float16 */
} CoreCoded;

/* What core_coded_pack packs, all in the host's memory: rows first_row ... first_row + rows - 1. */
typedef struct CoreCodedPack {
  const CoreCoded* matrix;  /* data is written */
  const uint8_t* codes;     /* [rows, inputs] */
  const float* row_scales;  /* [rows, groups] */
  const float* row_offsets; /* [rows, groups]; null exactly where the matrix has none */
  int64_t first_row;        /* a multiple of 64 */
  int64_t rows;             /* a multiple of 64, or up to the last row */
} CoreCodedPack;

/* Bytes that data needs; 0 where the description is wrong. */
CORE_API int64_t core_coded_bytes(const CoreCoded* matrix);
/* Packs; several threads may pack different rows at once. The memory need not be zeroed. */
CORE_API CoreStatus core_coded_pack(const CoreCodedPack* pack);
/* One row of a matrix in the host's memory as float32, [inputs]. */
CORE_API CoreStatus core_coded_row(const CoreCoded* matrix, int64_t row, float* values);

typedef enum CoreCodedLimit {
  CORE_CODED_ROWS = 64, /* that core_coded_linear multiplies at once */
} CoreCodedLimit;

/* out = x * matrix^T + bias, for few rows. */
typedef struct CoreCodedLinear {
  CoreCoded matrix;
  const void* x;    /* [rows, inputs] of the matrix's dtype */
  const void* bias; /* [outputs] of the dtype; null: none */
  void* out;        /* [rows, outputs] of the dtype */
  float* room;      /* [splits, rows, outputs]; may be null where splits is 1 */
  int64_t rows;     /* 0 ... CORE_CODED_ROWS */
  int32_t splits;   /* blocks that share a piece of out: 1 ... 65535; the sum does not depend on who ends first */
} CoreCodedLinear;

/* The number of splits that keeps so many multiprocessors busy; 0 where the description is wrong. */
CORE_API int32_t core_coded_splits(const CoreCoded* matrix, int64_t rows, int32_t multiprocessors);

/* Rows of the matrix as numbers: out[i] = row ids[i], or row first + i where there are no ids. An id that the matrix
 * does not have gives a row of NaN. */
typedef struct CoreCodedRows {
  CoreCoded matrix;
  const int32_t* ids; /* [rows]; null: none */
  void* out;          /* [rows, inputs] of the matrix's dtype */
  int64_t rows;       /* 0 ... 2^31 - 1 */
  int64_t first;      /* 0 ... 2^31 - 1; 0 where there are ids */
} CoreCodedRows;

/* ---- sampling ---- */

/* Draws a token for each row of logits. The arrays of CoreSampling and CoreLogitChanges are the program's, in the
 * memory of the device. */
typedef struct CoreSampleRows {
  const void* logits;           /* [rows, vocab] */
  const CoreSampling* sampling; /* [rows] */
  CoreSampled* sampled;         /* [rows] */
  int32_t* top_ids;             /* [rows, CORE_TOP_LOGPROBS] as in CoreBatch; null where no row asks */
  double* top_logprobs;         /* the same */
  float* room;                  /* [rows, vocab] */
  int64_t rows;                 /* 0 ... 2^31 - 1 */
  int64_t vocab;                /* 1 ... 2^31 - 1 */
  int32_t dtype;                /* CoreDtype of logits */
} CoreSampleRows;

#define CORE_DEVICE_ROW_OPS(OP)        \
  OP(rms_norm, CoreRmsNorm)            \
  OP(quantize_rows, CoreQuantizeRows)  \
  OP(rms_norm_codes, CoreRmsNormCodes) \
  OP(gated_rows, CoreGatedRows)        \
  OP(scaled_sums, CoreScaledSums)      \
  OP(gather_rows, CoreGatherRows)      \
  OP(coded_linear, CoreCodedLinear)    \
  OP(coded_rows, CoreCodedRows)        \
  OP(sample_rows, CoreSampleRows)

#ifdef __cplusplus
}
#endif

#endif /* HEADRACE_CORE_DEVICE_ROWS_H_ */
