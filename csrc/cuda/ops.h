// The launchers of the CUDA library. Arguments have been checked; each enqueues and returns a status.
#pragma once

#include "core.h"
#include "cuda/device.h"

namespace core {

CoreStatus rms_norm(const CoreRmsNorm& args, Stream stream);

}  // namespace core
