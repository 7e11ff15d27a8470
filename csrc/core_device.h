/* The ops of the libraries for devices: core_cuda, and core_sim, which runs the same sources on the CPU. core_cpu has
 * programs instead (core_program.h).
 *
 * As core_rms_norm, every op takes one parameter struct and, last, a stream; what the head of core.h says of ops holds.
 * A struct or constant added here is added to cuda/device_abi.cpp and to native/device_abi.py: loading compares them.
 */
#ifndef HEADRACE_CORE_DEVICE_H_
#define HEADRACE_CORE_DEVICE_H_

#include "core.h"
#include "core_device_kv.h"
#include "core_device_rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The facts of this header, as core_abi has those of core.h. */
CORE_API const CoreAbiEntry* core_device_abi(void);

#ifdef __cplusplus
}
#endif

#endif /* HEADRACE_CORE_DEVICE_H_ */
