/* The C ABI of the native core that its libraries share: core_cpu, which has programs beside (core_program.h), and
 * core_cuda and core_sim, which have more ops (core_device.h).
 *
 * Every op takes one parameter struct and, last, a stream: a cudaStream_t for core_cuda, which only enqueues; the
 * other two compute before they return and take no notice of it. No op allocates or waits for the device.
 * Buffers are contiguous, row-major, and in the memory of the library's device. Every pointer is aligned to its
 * element at least; 16 bytes are faster.
 *
 * A field added here is added to common/abi.cpp and to the ctypes structs of native.py: loading compares them.
 */
#ifndef HEADRACE_CORE_H_
#define HEADRACE_CORE_H_

#include <stdint.h>

#define CORE_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* How numbers are stored. Arithmetic is in float32 for all of them. */
typedef enum CoreDtype {
  CORE_FLOAT32 = 1,
  CORE_BFLOAT16 = 2,
  CORE_FLOAT16 = 3,
} CoreDtype;

/* What went wrong: the low 8 bits of a status. */
typedef enum CoreCode {
  CORE_OK = 0,
  CORE_NULL_POINTER = 1,  /* a pointer is null that must not be */
  CORE_MISALIGNED = 2,    /* a pointer is not aligned to its element */
  CORE_BAD_COUNT = 3,     /* a number is not in 0 ... 2^31 - 1 */
  CORE_BAD_EXTENT = 4,    /* a number is not in 1 ... 2^31 - 1 */
  CORE_BAD_NUMBER = 5,    /* a number is negative or not finite */
  CORE_UNKNOWN_DTYPE = 6, /* a number is no CoreDtype */
  CORE_DEVICE_ERROR = 7,  /* the device's runtime refused the launch */
  CORE_NO_MEMORY = 8,     /* the system gives no more memory or threads */
  CORE_NO_ISA = 9,        /* a number is no CoreIsa that this machine has */
  CORE_BAD_THREADS = 10,  /* a number is not in 1 ... 1024 */
  CORE_BAD_GROUP = 11,    /* a number is no size of a group */
  CORE_BAD_CODE = 12,     /* a number is no code of the format */
  CORE_BAD_SHAPE = 13,    /* numbers of a shape do not fit one another */
  CORE_BAD_VALUE = 14,    /* a CoreValue does not fit the workspace, or another value */
  CORE_BAD_BATCH = 15,    /* a batch exceeds the shape of its program, or names what is not there */
  CORE_NOT_BOUND = 16,    /* the program has no pool yet */
} CoreCode;

/* A CoreCode in the low 8 bits and a detail above them. The detail of CORE_DEVICE_ERROR is the runtime's own error
 * number; of the codes about arguments, 1 + the offset of the field in the parameter struct, 0 for the struct itself.
 */
typedef int32_t CoreStatus;

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

CORE_API CoreStatus core_rms_norm(const CoreRmsNorm* args, void* stream);

/* A sentence about a status; for CORE_DEVICE_ERROR the runtime's own. Never null, never freed. */
CORE_API const char* core_status_text(CoreStatus status);

/* One fact of this ABI.
 *   "CoreRmsNorm":      value = alignment, size = size of the struct
 *   "CoreRmsNorm.rows": value = offset, size = size of the field
 *   "CORE_BFLOAT16":    value = the constant, size = 0 */
typedef struct CoreAbiEntry {
  const char* name;
  int64_t value;
  int64_t size;
} CoreAbiEntry;

/* All facts of this ABI; the last entry's name is null. */
CORE_API const CoreAbiEntry* core_abi(void);

#ifdef __cplusplus
}
#endif

#endif /* HEADRACE_CORE_H_ */
