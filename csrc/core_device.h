/* The ops of the libraries for devices: core_cuda, and core_sim, which runs the same sources on the CPU. core_cpu has
 * programs instead (core_program.h).
 *
 * Every op takes one parameter struct and, last, a stream: a cudaStream_t for core_cuda, which only enqueues; core_sim
 * computes before it returns and takes no notice of it. No op allocates or waits for the device.
 * Buffers are contiguous, row-major, and in the memory of the library's device. Every pointer is aligned to its
 * element at least; 16 bytes are faster.
 */
#ifndef HEADRACE_CORE_DEVICE_H_
#define HEADRACE_CORE_DEVICE_H_

#include "core.h"
#include "core_device_kv.h"
#include "core_device_rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The ops, and the struct that each takes: core_rms_norm(&args, stream). */
#define CORE_DEVICE_OPS(OP) CORE_DEVICE_KV_OPS(OP) CORE_DEVICE_ROW_OPS(OP)
#define CORE_DECLARE_DEVICE_OP(op, Args) CORE_API CoreStatus core_##op(const Args* args, void* stream);
CORE_DEVICE_OPS(CORE_DECLARE_DEVICE_OP)
#undef CORE_DECLARE_DEVICE_OP

#ifdef __cplusplus
}
#endif

#endif /* HEADRACE_CORE_DEVICE_H_ */
