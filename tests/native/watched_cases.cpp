// Small kernels whose accesses the simulator watches, right ones and ones with a planted fault, each run by name:
//   watched_cases NAME    exit 0: the result is right; 1: it is wrong; aborted: the simulator found the fault
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "cuda/number.h"

namespace {

template <typename... Args>
void run(void (*kernel)(Args...), Args... args) {
  if (launch(kernel, dim3(2), dim3(64), 0, nullptr, args...) != 0) exit(3);
}

template <bool Atomic>
__global__ void count(int* out) {
  SHARED_ARRAY(int, listed, 1);
  if (threadIdx.x == 0) listed[0] = 0;
  __syncthreads();
  if constexpr (Atomic) {
    atomicAdd(&listed[0], 1);
  } else {
    listed[0]++;
  }
  __syncthreads();
  out[blockIdx.x] = listed[0];
}

template <bool Atomic>
bool counted() {
  std::vector<int> out(2);
  run(count<Atomic>, out.data());
  return out == std::vector<int>{64, 64};
}

// Lanes of each warp hand numbers on: a shuffle makes none of them wait for what others wrote.
template <bool Wait>
__global__ void hand_on(int* out) {
  SHARED_ARRAY(int, box, 64);
  box[threadIdx.x] = static_cast<int>(threadIdx.x);
  if constexpr (Wait) {
    __syncwarp();
  } else {
    __shfl_xor_sync(0xffffffffu, 0, 1);
  }
  out[blockIdx.x * 64 + threadIdx.x] = box[threadIdx.x ^ 1];
}

template <bool Wait>
bool handed_on() {
  std::vector<int> out(128);
  run(hand_on<Wait>, out.data());
  for (int i = 0; i < 128; i++) {
    if (out[i] != (i % 64 ^ 1)) return false;
  }
  return true;
}

// The first warp reads what the second writes for the next round.
template <bool Barrier>
__global__ void read_before_a_write(int* out) {
  SHARED_ARRAY(int, box, 32);
  if (threadIdx.x < 32) box[threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x < 32) out[blockIdx.x * 32 + threadIdx.x] = box[threadIdx.x];
  if constexpr (Barrier) __syncthreads();
  if (threadIdx.x >= 32) box[threadIdx.x - 32] = 2;
}

template <bool Barrier>
bool read_first() {
  std::vector<int> out(64);
  run(read_before_a_write<Barrier>, out.data());
  return out == std::vector<int>(64, 1);
}

__global__ void move(const float* in, float* out) {
  reinterpret_cast<core::Pack<float, 4>*>(out)[threadIdx.x] =
      reinterpret_cast<const core::Pack<float, 4>*>(in)[threadIdx.x];
}

template <int Shift>
bool moved() {
  alignas(16) static float in[4 * 64 + 1], out[4 * 64];
  in[Shift] = 7;
  run<const float*, float*>(move, in + Shift, out);
  return out[0] == 7;
}

const std::map<std::string, std::function<bool()>> kCases = {
    {"count", counted<true>},
    {"count_without_atomics", counted<false>},
    {"hand_on", handed_on<true>},
    {"hand_on_by_a_shuffle", handed_on<false>},
    {"read_first", read_first<true>},
    {"read_first_without_barrier", read_first<false>},
    {"move", moved<0>},
    {"move_from_between", moved<1>},
};

}  // namespace

int main(int count, char** names) {
  if (count != 2 || !kCases.contains(names[1])) return 2;
  return kCases.at(names[1])() ? 0 : 1;
}
