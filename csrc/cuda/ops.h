// The launchers of the CUDA library. Each takes checked arguments, enqueues on the stream and returns a status.
#pragma once

#include "core_device.h"
#include "cuda/device.h"

namespace core {

#define LAUNCHER(op, Args) CoreStatus op(const Args& args, Stream stream);
CORE_DEVICE_OPS(LAUNCHER)
#undef LAUNCHER

}  // namespace core
