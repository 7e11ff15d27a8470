/* Types and functions common to all native libraries: core_cpu runs programs (core_program.h); core_cuda and core_sim
 * run single ops (core_device.h).
 *
 * The core*.h headers are the whole ABI. The build generates the Python module native/abi.py from them (csrc/abi.py),
 * which understands enums, functions, and structs of numbers, arrays, pointers and other structs.
 */
#ifndef HEADRACE_CORE_H_
#define HEADRACE_CORE_H_

#include <stdint.h>

#define CORE_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* Storage type of numbers. Arithmetic is in float32 for all of them. */
typedef enum CoreDtype {
  CORE_FLOAT32 = 1,
  CORE_BFLOAT16 = 2,
  CORE_FLOAT16 = 3,
} CoreDtype;

/* Storage of keys and values. The integer formats store a scale and an offset per token and head next to the codes. */
typedef enum CoreKv {
  CORE_KV_FLOAT32 = 1,
  CORE_KV_BFLOAT16 = 2,
  CORE_KV_INT8 = 3,
  CORE_KV_UINT4 = 4,
} CoreKv;

/* The activation of a gate: gate and up become activation(gate) * up. */
typedef enum CoreGate {
  CORE_GATE_SILU = 1,
  CORE_GATE_GELU = 2,      /* with the error function */
  CORE_GATE_GELU_TANH = 3, /* with tanh */
  CORE_GATE_CLAMPED = 4,   /* g * sigmoid(1.702 g), where g = min(gate, 7); times 1 + up limited to -7 ... 7 */
} CoreGate;

/* Error codes: the low 8 bits of a status. */
typedef enum CoreCode {
  CORE_OK = 0,
  CORE_NULL_POINTER = 1,  /* a required pointer is null */
  CORE_MISALIGNED = 2,    /* a pointer is not aligned to its element */
  CORE_BAD_COUNT = 3,     /* a number is not in 0 ... 2^31 - 1 */
  CORE_BAD_EXTENT = 4,    /* a number is not in 1 ... 2^31 - 1 */
  CORE_BAD_NUMBER = 5,    /* a number is negative or not finite */
  CORE_UNKNOWN_DTYPE = 6, /* a number is not a valid CoreDtype */
  CORE_DEVICE_ERROR = 7,  /* the device's runtime rejected the launch */
  CORE_NO_MEMORY = 8,     /* the system is out of memory or threads */
  CORE_NO_ISA = 9,        /* a number is not a CoreIsa that this machine supports */
  CORE_BAD_THREADS = 10,  /* a number is not in 1 ... 1024 */
  CORE_BAD_GROUP = 11,    /* a number is not a supported group size */
  CORE_BAD_CODE = 12,     /* a number is not a valid code of the format */
  CORE_BAD_SHAPE = 13,    /* the numbers of a shape are inconsistent */
  CORE_BAD_VALUE = 14,    /* a CoreValue does not fit the workspace, or another value */
  CORE_BAD_BATCH = 15,    /* a batch exceeds the shape of its program, or names invalid ids, rows or blocks */
  CORE_NOT_BOUND = 16,    /* the program is not bound to a pool, or has not joined its ranks */
  CORE_RANK_LOST = 17,    /* another rank of the model is gone */
} CoreCode;

/* A CoreCode in the low 8 bits and a detail above them. For CORE_DEVICE_ERROR the detail is the runtime's own error
 * number; for codes about arguments it is 1 + the offset of the field in the parameter struct, or 0 for the struct
 * itself. */
typedef int32_t CoreStatus;

/* Describe a status; for CORE_DEVICE_ERROR with the runtime's own text. Never null; static, the caller must not free
 * it. */
CORE_API const char* core_status_text(CoreStatus status);

/* Return the digest of the declarations that the library was compiled with. The generated Python module carries the
 * same digest; the loader compares the two. */
CORE_API const char* core_abi_digest(void);

#ifdef __cplusplus
}
#endif

#endif /* HEADRACE_CORE_H_ */
