// Asynchronous copies from global to shared memory. They are performed only when waited for, so that reading without
// waiting reads NaN.
#pragma once

#include <cstdint>

#include "sim/block.h"
#include "sim/watch.h"

namespace cusim {

// Start a copy of 16 bytes by the current thread; zeros if `there` is false, without touching `global`.
inline void copy_async(void* shared, const void* global, bool there) {
  require_shared(shared, Copy::kBytes, "the target of cp.async");
  if (reinterpret_cast<uintptr_t>(global) % Copy::kBytes != 0)
    fail("the source of cp.async is not aligned to 16 bytes");
  memset(shared, 0xff, Copy::kBytes);
  told_touch(shared, Copy::kBytes, Access::kWrite);
  self().copies.push_back({shared, there ? global : nullptr, self().groups});
}

inline void copies_commit() {
  self().groups++;
}

// Perform all copies except those of the newest `pending` groups and those in no group yet.
inline void copies_wait(int pending) {
  Thread& me = self();
  std::erase_if(me.copies, [&](const Copy& copy) {
    const bool lands = copy.group + pending < me.groups;
    if (lands) told_touch(copy.shared, Copy::kBytes, Access::kWrite);
    if (lands && copy.global != nullptr) memcpy(copy.shared, copy.global, Copy::kBytes);
    if (lands && copy.global == nullptr) memset(copy.shared, 0, Copy::kBytes);
    return lands;
  });
}

}  // namespace cusim
