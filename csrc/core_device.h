/* The ops of the device libraries: core_cuda, and core_sim, which runs the same sources on the CPU. core_cpu has
 * programs instead (core_program.h).
 *
 * Every op takes a parameter struct and a stream. core_cuda enqueues on the stream, a cudaStream_t, and returns;
 * core_sim ignores the stream and computes before it returns. No op allocates or waits for the device.
 *
 * Ownership: the struct is copied during the call. The caller owns all buffers and must keep them alive and unchanged
 * until the stream has passed the op. They are row-major and contiguous unless a stride is given, in device memory, and
 * aligned at least to their element; 16 bytes are faster.
 */
#ifndef HEADRACE_CORE_DEVICE_H_
#define HEADRACE_CORE_DEVICE_H_

#include "core.h"
#include "core_device_kv.h"
#include "core_device_rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The ops, with the struct that each takes: core_rms_norm(&args, stream) takes a CoreRmsNorm, and so on. */
#define CORE_DEVICE_OPS(OP) CORE_DEVICE_KV_OPS(OP) CORE_DEVICE_ROW_OPS(OP)
#define CORE_DECLARE_DEVICE_OP(op, Args) CORE_API CoreStatus core_##op(const Args* args, void* stream);
CORE_DEVICE_OPS(CORE_DECLARE_DEVICE_OP)
#undef CORE_DECLARE_DEVICE_OP

#ifdef __cplusplus
}
#endif

#endif /* HEADRACE_CORE_DEVICE_H_ */
