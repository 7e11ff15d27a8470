// The facts of core_device.h that callers in other languages check before the first call.
#include "common/abi.h"
#include "core_device.h"

static const CoreAbiEntry kEntries[] = {
    {nullptr, 0, 0},
};

const CoreAbiEntry* core_device_abi(void) {
  return kEntries;
}
