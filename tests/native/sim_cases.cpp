// Small kernels, right ones and ones with a planted fault, each run by name:
//   sim_cases NAME    exit 0: the result is right; 1: it is wrong; aborted: the simulator found the fault
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "cuda/reduce.h"

namespace {

constexpr unsigned kAll = 0xffffffffu;

template <typename... Params, typename... Args>
void run(void (*kernel)(Params...), int blocks, int threads, int shared_bytes, Args... args) {
  if (const int error = launch(kernel, dim3(blocks), dim3(threads), shared_bytes, nullptr, args...); error != 0) {
    fprintf(stderr, "launch refused: %d\n", error);
    exit(3);
  }
}

// ---- barriers ----

template <bool Barrier>
__global__ void reverse(const int* in, int* out) {
  SHARED_ARRAY(int, buffer, 128);
  buffer[threadIdx.x] = in[threadIdx.x];
  if constexpr (Barrier) __syncthreads();
  out[threadIdx.x] = buffer[blockDim.x - 1 - threadIdx.x];
}

template <bool Barrier>
bool reverse_is_right() {
  std::vector<int> in(128), out(128);
  for (int i = 0; i < 128; i++) in[i] = i;
  run(reverse<Barrier>, 1, 128, 0, in.data(), out.data());
  for (int i = 0; i < 128; i++) {
    if (out[i] != 127 - i) return false;
  }
  return true;
}

// Warp 0 hands a number to warp 2 in each round, and warp 1 looks on. Without the second barrier warp 0 may write
// the next number before warp 2 has read this one.
template <bool TrailingBarrier>
__global__ void hand_over(int* sums) {
  SHARED_ARRAY(int, box, 32);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = 0;
  for (int round = 0; round < 2; round++) {
    if (warp == 0) box[lane] = 1 << round;
    __syncthreads();
    if (warp == 2) sum += box[lane];
    if constexpr (TrailingBarrier) __syncthreads();
  }
  if (warp == 2) sums[lane] = sum;
}

template <bool TrailingBarrier>
bool hand_over_is_right() {
  std::vector<int> sums(32);
  run(hand_over<TrailingBarrier>, 1, 96, 0, sums.data());
  return sums == std::vector<int>(32, 3);
}

__global__ void vote_at_barrier(int* out) {
  const int odd = threadIdx.x % 2;
  const int count = __syncthreads_count(odd);
  const int some = __syncthreads_or(threadIdx.x == 70);
  const int none = __syncthreads_or(0);
  const int all = __syncthreads_and(1);
  const int not_all = __syncthreads_and(threadIdx.x != 70);
  out[threadIdx.x] = count == 48 && some && !none && all && !not_all;
}

bool vote_at_barrier_is_right() {
  std::vector<int> out(96);
  run(vote_at_barrier, 1, 96, 0, out.data());
  return out == std::vector<int>(96, 1);
}

// The upper half of the warp returns; the others still wait for "everybody", in a collective and at a barrier.
__global__ void return_early(int* out) {
  if (threadIdx.x % 32 >= 16) return;
  const int present = __popc(__ballot_sync(kAll, 1));
  __syncthreads();
  out[threadIdx.x] = present;
}

bool return_early_is_right() {
  std::vector<int> out(64), expected(64);
  for (int i = 0; i < 64; i++) expected[i] = i % 32 < 16 ? 16 : 0;
  run(return_early, 1, 64, 0, out.data());
  return out == expected;
}

// The first and the last thread return before or after all others have come to the barrier.
__global__ void leave_others_at_a_barrier(int* out) {
  if (threadIdx.x == 0 || threadIdx.x == blockDim.x - 1) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

bool leave_others_at_a_barrier_is_right() {
  std::vector<int> out(64), expected(64, 1);
  expected.front() = expected.back() = 0;
  run(leave_others_at_a_barrier, 1, 64, 0, out.data());
  return out == expected;
}

// ---- warp collectives ----

__global__ void shuffles(int* out) {
  const int lane = threadIdx.x % 32;
  int right = __shfl_sync(kAll, lane * 10, 5) == 50;
  right &= __shfl_sync(kAll, lane, 3, 8) == lane / 8 * 8 + 3;
  right &= __shfl_xor_sync(kAll, lane, 16) == (lane ^ 16);
  right &= __shfl_down_sync(kAll, lane, 4) == (lane + 4 < 32 ? lane + 4 : lane);
  right &= __shfl_down_sync(kAll, lane, 4, 16) == (lane % 16 + 4 < 16 ? lane + 4 : lane);
  right &= __shfl_up_sync(kAll, lane, 4) == (lane >= 4 ? lane - 4 : lane);
  right &= __shfl_up_sync(kAll, lane, 4, 8) == (lane % 8 >= 4 ? lane - 4 : lane);
  right &= __shfl_xor_sync(kAll, 0.5 + lane, 1) == 0.5 + (lane ^ 1);
  out[threadIdx.x] = right;
}

__global__ void votes(int* out) {
  const int lane = threadIdx.x % 32;
  int right = __ballot_sync(kAll, lane % 2) == 0xaaaaaaaau;
  right &= __any_sync(kAll, lane == 31) && !__any_sync(kAll, 0);
  right &= __all_sync(kAll, 1) && !__all_sync(kAll, lane != 31);
  // Halves of the warp under masks of their own, and more often in one than in the other.
  const unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  for (int i = 0; i < (lane < 16 ? 1 : 3); i++) right &= __ballot_sync(half, 1) == half;
  right &= __shfl_xor_sync(kAll, lane, 31) == 31 - lane;
  out[threadIdx.x] = right;
}

bool warps_say_right(void (*kernel)(int*)) {
  std::vector<int> out(64);
  run(kernel, 1, 64, 0, out.data());
  return out == std::vector<int>(64, 1);
}

// Two sums in a row share one array, and must not run into each other.
__global__ void sum_twice(int* out) {
  const float ones = core::block_sum(1.0f);
  const float indices = core::block_sum(static_cast<float>(threadIdx.x));
  out[threadIdx.x] = ones == blockDim.x && indices == blockDim.x * (blockDim.x - 1) / 2;
}

bool block_sums_are_right() {
  for (const int threads : {32, 96, 1024}) {
    std::vector<int> out(threads);
    run(sum_twice, 1, threads, 0, out.data());
    if (out != std::vector<int>(threads, 1)) return false;
  }
  return true;
}

// ---- blocks, memory, launches ----

__global__ void count(int* total, int* largest, int* first) {
  atomicAdd(total, 1);
  atomicMax(largest, static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x));
  atomicCAS(first, -1, static_cast<int>(threadIdx.x));
}

bool atomics_are_right() {
  int total = 0, largest = -1, first = -1;
  run(count, 64, 64, 0, &total, &largest, &first);
  return total == 4096 && largest == 4095 && first >= 0 && first < 64;
}

__global__ void number_all(int* out) {
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * 24 + thread] = block * 24 + thread;
}

bool indices_are_right() {
  std::vector<int> out(24 * 24, -1), expected(24 * 24);
  for (int i = 0; i < 24 * 24; i++) expected[i] = i;
  return launch(number_all, dim3(2, 3, 4), dim3(4, 3, 2), 0, nullptr, out.data()) == 0 && out == expected;
}

__global__ void look_at_fresh_shared(int* out) {
  SHARED_ARRAY(float, fixed, 8);
  DYNAMIC_SHARED(float, dynamic);
  out[blockIdx.x] = std::isnan(fixed[3]) && std::isnan(dynamic[3]);
  fixed[3] = dynamic[3] = 1.0f;
}

bool shared_starts_as_nan() {
  std::vector<int> out(4);
  run(look_at_fresh_shared, 4, 1, 32, out.data());
  return out == std::vector<int>(4, 1);
}

bool impossible_launches_are_refused() {
  std::vector<int> out(1);
  const int too_many = launch(number_all, dim3(1), dim3(1025), 0, nullptr, out.data());
  const int empty = launch(number_all, dim3(0), dim3(32), 0, nullptr, out.data());
  const int too_much = launch(number_all, dim3(1), dim3(32), 228 << 10, nullptr, out.data());
  return too_many == cudaErrorInvalidConfiguration && empty == cudaErrorInvalidConfiguration &&
         too_much == cudaErrorInvalidValue;
}

template <int Threads>
__global__ void begin(int* out) {
  if (threadIdx.x < Threads) begin_kernel();
  out[threadIdx.x] = 1;
}

template <int Threads>
bool begins_early() {
  std::vector<int> out(32);
  return launch_early(begin<Threads>, dim3(1), dim3(32), 0, nullptr, out.data()) == 0 && out == std::vector<int>(32, 1);
}

// ---- planted faults ----

__global__ void vote_before_the_begin(int* out) {
  out[threadIdx.x] = __syncthreads_count(1);
  begin_kernel();
}

__global__ void skip_a_barrier(int* out) {
  if (threadIdx.x == 0) {
    out[0] = __shfl_sync(kAll, 1, 0);
  } else {
    __syncthreads();
  }
}

__global__ void name_absent_lanes(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(kAll, 1, 1);
  __syncthreads();
}

__global__ void leave_oneself_out(int* out) {
  out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1, 1);
}

__global__ void read_beyond_the_mask(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1, 16);
}

__global__ void mix_collectives(int* out) {
  out[threadIdx.x] = threadIdx.x == 7 ? __any_sync(kAll, 1) : __shfl_sync(kAll, 1, 0);
}

__global__ void overrun_an_array(int* out) {
  SHARED_ARRAY(int, buffer, 32);
  buffer[threadIdx.x + 1] = 1;
  out[threadIdx.x] = buffer[0];
}

__global__ void overrun_dynamic(int* out) {
  DYNAMIC_SHARED(int, buffer);
  buffer[threadIdx.x + 1] = 1;
  out[threadIdx.x] = 1;
}

__global__ void overrun_the_output(int* out) {
  out[threadIdx.x + 1] = 1;
}

bool returns_at_all(void (*kernel)(int*), int shared_bytes) {
  std::vector<int> out(32);
  run(kernel, 1, 32, shared_bytes, out.data());
  return true;
}

const std::map<std::string, std::function<bool()>> kCases = {
    {"reverse", reverse_is_right<true>},
    {"reverse_without_barrier", reverse_is_right<false>},
    {"hand_over", hand_over_is_right<true>},
    {"hand_over_without_trailing_barrier", hand_over_is_right<false>},
    {"vote_at_barrier", vote_at_barrier_is_right},
    {"return_early", return_early_is_right},
    {"leave_others_at_a_barrier", leave_others_at_a_barrier_is_right},
    {"shuffles", [] { return warps_say_right(shuffles); }},
    {"votes", [] { return warps_say_right(votes); }},
    {"block_sums", block_sums_are_right},
    {"atomics", atomics_are_right},
    {"indices", indices_are_right},
    {"fresh_shared", shared_starts_as_nan},
    {"impossible_launches", impossible_launches_are_refused},
    {"begin_early", begins_early<32>},
    {"begin_without_the_last", begins_early<31>},
    {"vote_before_the_begin",
     [] {
       std::vector<int> out(32);
       return launch_early(vote_before_the_begin, dim3(1), dim3(32), 0, nullptr, out.data()) == 0;
     }},
    {"skip_a_barrier", [] { return returns_at_all(skip_a_barrier, 0); }},
    {"name_absent_lanes", [] { return returns_at_all(name_absent_lanes, 0); }},
    {"leave_oneself_out", [] { return returns_at_all(leave_oneself_out, 0); }},
    {"read_beyond_the_mask", [] { return returns_at_all(read_beyond_the_mask, 0); }},
    {"mix_collectives", [] { return returns_at_all(mix_collectives, 0); }},
    {"overrun_an_array", [] { return returns_at_all(overrun_an_array, 0); }},
    {"overrun_dynamic", [] { return returns_at_all(overrun_dynamic, 32 * sizeof(int)); }},
    {"overrun_the_output", [] { return returns_at_all(overrun_the_output, 0); }},
};

}  // namespace

int main(int argc, char** argv) {
  const auto found = kCases.find(argc == 2 ? argv[1] : "");
  if (found == kCases.end()) return 2;
  return found->second() ? 0 : 1;
}
