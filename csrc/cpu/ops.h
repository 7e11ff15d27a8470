// The ops of the CPU library. Arguments have been checked.
#pragma once

#include "core.h"

namespace core {

void rms_norm(const CoreRmsNorm& args);

}  // namespace core
