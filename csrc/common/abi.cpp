// The facts of core.h that callers in other languages check before the first call.
#include <cstddef>

#include "core.h"

#define RECORD(Struct) {#Struct, alignof(Struct), sizeof(Struct)}
#define FIELD(Struct, field) {#Struct "." #field, offsetof(Struct, field), sizeof(Struct::field)}
#define CONSTANT(name) {#name, name, 0}

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
