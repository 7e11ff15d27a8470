/* What the libraries of the native core share: core_cpu runs programs (core_program.h), core_cuda and core_sim have ops
 * (core_device.h).
 *
 * These headers are all there is to the ABI: when a library is built, abi.py makes the Python module native/abi.py from
 * them. It reads enums, structs of numbers, arrays, pointers and other structs, and functions.
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

/* Storage of keys and values. The integer formats hold scale and zero of each token and head beside the codes. */
typedef enum CoreKv {
  CORE_KV_FLOAT32 = 1,
  CORE_KV_BFLOAT16 = 2,
  CORE_KV_INT8 = 3,
  CORE_KV_UINT4 = 4,
} CoreKv;

/* The activation of a gate. */
typedef enum CoreGate {
  CORE_GATE_SILU = 1,
  CORE_GATE_GELU = 2,      /* with the error function */
  CORE_GATE_GELU_TANH = 3, /* with tanh */
} CoreGate;

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

/* A sentence about a status; for CORE_DEVICE_ERROR the runtime's own. Never null, never freed. */
CORE_API const char* core_status_text(CoreStatus status);

/* The digest of the declarations that the library was compiled with: abi.py writes them for Python, with the same
 * digest, and loading compares the two. */
CORE_API const char* core_abi_digest(void);

#ifdef __cplusplus
}
#endif

#endif /* HEADRACE_CORE_H_ */
