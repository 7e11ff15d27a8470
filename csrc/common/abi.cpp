// The facts of core.h that callers in other languages check before the first call.
#include "common/abi.h"

#include "core.h"

static const CoreAbiEntry kEntries[] = {
    CONSTANT(CORE_FLOAT32),
    CONSTANT(CORE_BFLOAT16),
    CONSTANT(CORE_FLOAT16),
    CONSTANT(CORE_OK),
    CONSTANT(CORE_NULL_POINTER),
    CONSTANT(CORE_MISALIGNED),
    CONSTANT(CORE_BAD_COUNT),
    CONSTANT(CORE_BAD_EXTENT),
    CONSTANT(CORE_BAD_NUMBER),
    CONSTANT(CORE_UNKNOWN_DTYPE),
    CONSTANT(CORE_DEVICE_ERROR),
    CONSTANT(CORE_NO_MEMORY),
    CONSTANT(CORE_NO_ISA),
    CONSTANT(CORE_BAD_THREADS),
    CONSTANT(CORE_BAD_GROUP),
    CONSTANT(CORE_BAD_CODE),
    CONSTANT(CORE_BAD_SHAPE),
    CONSTANT(CORE_BAD_VALUE),
    CONSTANT(CORE_BAD_BATCH),
    CONSTANT(CORE_NOT_BOUND),
    RECORD(CoreRmsNorm),
    FIELD(CoreRmsNorm, x),
    FIELD(CoreRmsNorm, residual),
    FIELD(CoreRmsNorm, weight),
    FIELD(CoreRmsNorm, out),
    FIELD(CoreRmsNorm, residual_out),
    FIELD(CoreRmsNorm, rows),
    FIELD(CoreRmsNorm, hidden),
    FIELD(CoreRmsNorm, eps),
    FIELD(CoreRmsNorm, dtype),
    {nullptr, 0, 0},
};

const CoreAbiEntry* core_abi(void) {
  return kEntries;
}
