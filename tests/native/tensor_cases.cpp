// Tensor cores and asynchronous copies, right uses and planted faults, each run by name:
//   tensor_cases NAME    exit 0: the result is right; 1: it is wrong; aborted: the simulator found the fault
#include <cstdio>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "cuda/mma.h"

namespace {

using core::BFloat16;
using core::Float16;
using Pack16 = core::Pack<uint32_t, 4>;

template <typename... Params, typename... Args>
void run(void (*kernel)(Params...), int threads, Args... args) {
  if (const int error = launch(kernel, dim3(1), dim3(threads), 0, nullptr, args...); error != 0) {
    fprintf(stderr, "launch refused: %d\n", error);
    exit(3);
  }
}

std::vector<double> random_numbers(int count, double limit) {
  std::mt19937 generator(7);
  std::uniform_real_distribution<double> numbers(-limit, limit);
  std::vector<double> values(count);
  for (double& value : values) value = numbers(generator);
  return values;
}

template <typename T>
std::vector<T> stored(const std::vector<double>& values) {
  std::vector<T> result;
  for (const double value : values) result.push_back(static_cast<T>(static_cast<float>(value)));
  return result;
}

template <typename T>
double number(T value) {
  return static_cast<double>(static_cast<float>(value));
}

// ---- products, with the elements of fragments numbered as the PTX manual numbers them ----

constexpr int kRows = 16, kColumns = 8;

// Where element i of A, B or C lies, for 2 (16-bit) or 4 (bytes) elements in a register.
template <int Packed>
struct Place {
  int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

  int a_row(int i) const { return i / Packed % 2 == 0 ? g : g + 8; }
  int a_column(int i) const { return t * Packed + i % Packed + (i < 2 * Packed ? 0 : 4 * Packed); }
  int b_row(int i) const { return t * Packed + i % Packed + (i < Packed ? 0 : 4 * Packed); }
  int b_column(int) const { return g; }
  int c_row(int i) const { return i < 2 ? g : g + 8; }
  int c_column(int i) const { return t * 2 + i % 2; }
};

// c += a b, with a [16, Depth], b [Depth, 8] and c [16, 8].
template <typename T, typename Sum, int Depth>
__global__ void multiply(const T* a, const T* b, Sum* c) {
  constexpr int kPacked = Depth / 8;
  const Place<kPacked> place;
  alignas(4) T a_parts[4 * kPacked], b_parts[2 * kPacked];
  Sum sums[4];
  for (int i = 0; i < 4 * kPacked; i++) a_parts[i] = a[place.a_row(i) * Depth + place.a_column(i)];
  for (int i = 0; i < 2 * kPacked; i++) b_parts[i] = b[place.b_row(i) * kColumns + place.b_column(i)];
  for (int i = 0; i < 4; i++) sums[i] = c[place.c_row(i) * kColumns + place.c_column(i)];
  uint32_t left[4], right[2];
  memcpy(left, a_parts, sizeof left);
  memcpy(right, b_parts, sizeof right);
  if constexpr (std::is_same_v<Sum, int32_t>) {
    core::mma_int8(sums, left, right);
  } else {
    core::mma<T>(sums, left, right);
  }
  for (int i = 0; i < 4; i++) c[place.c_row(i) * kColumns + place.c_column(i)] = sums[i];
}

template <typename T, typename Sum>
bool close_to_product(const std::vector<T>& a, const std::vector<T>& b, const std::vector<Sum>& c, double limit) {
  const int depth = static_cast<int>(a.size()) / kRows;
  for (int row = 0; row < kRows; row++) {
    for (int column = 0; column < kColumns; column++) {
      double sum = row * kColumns + column;  // what c began with
      for (int k = 0; k < depth; k++) sum += number(a[row * depth + k]) * number(b[k * kColumns + column]);
      if (!(std::abs(sum - number(c[row * kColumns + column])) <= limit)) return false;
    }
  }
  return true;
}

template <typename T, typename Sum, int Depth>
bool product_is_right() {
  const double limit = std::is_same_v<T, int8_t> ? 128 : 4;
  auto a = stored<T>(random_numbers(kRows * Depth, limit)), b = stored<T>(random_numbers(Depth * kColumns, limit));
  if constexpr (std::is_same_v<T, int8_t>) a[0] = b[0] = -128;
  std::vector<Sum> c(kRows * kColumns);
  for (int i = 0; i < kRows * kColumns; i++) c[i] = static_cast<Sum>(i);
  run(multiply<T, Sum, Depth>, 32, a.data(), b.data(), c.data());
  return close_to_product(a, b, c, std::is_same_v<T, int8_t> ? 0 : 1e-4);
}

// ---- matrices from shared memory ----

constexpr int kSide = 16, kStride = kSide + 8;  // elements; the stride keeps rows on 16 bytes

// Reads [16, 16] as four matrices: 0 and 1 one above the other, 2 and 3 beside them.
template <bool Transposed>
__global__ void look_at_matrices(const uint16_t* in, uint32_t* out) {
  SHARED_ARRAY(Pack16, tile, kSide * kStride / 8);
  auto* elements = reinterpret_cast<uint16_t*>(tile);
  for (int i = threadIdx.x; i < kSide * kSide; i += 32) elements[i / kSide * kStride + i % kSide] = in[i];
  __syncwarp();
  const int lane = threadIdx.x;
  const uint16_t* row = elements + lane % 16 * kStride + lane / 16 * 8;
  uint32_t m[4];
  if constexpr (Transposed) {
    core::load_matrices_transposed(m, row);
  } else {
    core::load_matrices(m, row);
  }
  for (int j = 0; j < 4; j++) out[j * 32 + lane] = m[j];
}

template <bool Transposed>
bool matrices_are_right() {
  std::vector<uint16_t> in(kSide * kSide);
  for (int i = 0; i < kSide * kSide; i++) in[i] = static_cast<uint16_t>(i * 251);
  std::vector<uint32_t> out(4 * 32);
  run(look_at_matrices<Transposed>, 32, in.data(), out.data());
  for (int i = 0; i < 4 * 32; i++) {
    const int matrix = i / 32, line = i % 32 / 4;
    for (int half = 0; half < 2; half++) {
      const int along = i % 4 * 2 + half;
      const int row = matrix % 2 * 8 + (Transposed ? along : line),
                column = matrix / 2 * 8 + (Transposed ? line : along);
      if ((out[i] >> half * 16 & 0xffffu) != in[row * kSide + column]) return false;
    }
  }
  return true;
}

// ---- copies ----

// Two groups, the second of which writes zeros in its second half; what is there after each wait.
__global__ void copy_in_groups(const float* in, float* after_one, float* after_all) {
  SHARED_ARRAY(Pack16, packs, 64);
  const auto* numbers = reinterpret_cast<const float*>(packs);
  const int i = threadIdx.x;
  core::copy_async(packs + i, in + i * 4);
  core::copies_commit();
  core::copy_async(packs + 32 + i, in + 128 + i * 4, i < 16);
  core::copies_commit();
  core::copies_wait<1>();
  for (int k = 0; k < 4; k++) after_one[i * 4 + k] = numbers[i * 4 + k];
  for (int k = 0; k < 4; k++) after_one[128 + i * 4 + k] = numbers[128 + i * 4 + k];
  core::copies_wait<0>();
  for (int k = 0; k < 4; k++) after_all[i * 4 + k] = numbers[128 + i * 4 + k];
}

bool groups_land_in_turn() {
  alignas(16) float in[256];
  for (int i = 0; i < 256; i++) in[i] = static_cast<float>(i + 1);
  std::vector<float> after_one(256), after_all(128);
  run(copy_in_groups, 32, static_cast<const float*>(in), after_one.data(), after_all.data());
  for (int i = 0; i < 128; i++) {
    if (after_one[i] != in[i] || !std::isnan(after_one[128 + i])) return false;
    if (after_all[i] != (i < 64 ? in[128 + i] : 0.0f)) return false;
  }
  return true;
}

// Each warp reads what the other copied.
template <bool Wait, bool Barrier>
__global__ void copy_for_others(const float* in, float* out) {
  SHARED_ARRAY(Pack16, packs, 64);
  core::copy_async(packs + threadIdx.x, in + threadIdx.x * 4);
  core::copies_commit();
  if constexpr (Wait) core::copies_wait<0>();
  if constexpr (Barrier) __syncthreads();
  out[threadIdx.x] = reinterpret_cast<const float*>(packs)[(threadIdx.x ^ 32) * 4];
  if constexpr (!Wait) core::copies_wait<0>();
}

template <bool Wait, bool Barrier>
bool copies_reach_others() {
  alignas(16) float in[256];
  for (int i = 0; i < 256; i++) in[i] = static_cast<float>(i);
  std::vector<float> out(64);
  run(copy_for_others<Wait, Barrier>, 64, static_cast<const float*>(in), out.data());
  for (int i = 0; i < 64; i++) {
    if (out[i] != in[(i ^ 32) * 4]) return false;
  }
  return true;
}

// ---- planted faults ----

__global__ void never_wait(const Pack16* in) {
  SHARED_ARRAY(Pack16, packs, 32);
  core::copy_async(packs + threadIdx.x, in + threadIdx.x);
  core::copies_commit();
}

__global__ void copy_past_the_array(const Pack16* in) {
  SHARED_ARRAY(Pack16, packs, 31);
  core::copy_async(packs + threadIdx.x, in);
  core::copies_commit();
  core::copies_wait<0>();
}

__global__ void copy_from_between(const Pack16* in) {
  SHARED_ARRAY(Pack16, packs, 32);
  core::copy_async(packs + threadIdx.x, reinterpret_cast<const uint16_t*>(in) + 1);
  core::copies_commit();
  core::copies_wait<0>();
}

__global__ void read_rows_from_between(const Pack16*) {
  SHARED_ARRAY(Pack16, packs, 64);
  uint32_t m[4];
  core::load_matrices(m, reinterpret_cast<const uint16_t*>(packs + threadIdx.x) + 1);
}

__global__ void read_rows_past_the_array(const Pack16*) {
  SHARED_ARRAY(Pack16, packs, 32);
  uint32_t m[4];
  core::load_matrices(m, packs + threadIdx.x + 1);
}

__global__ void multiply_without_a_lane(const Pack16*) {
  float c[4] = {};
  const uint32_t a[4] = {}, b[2] = {};
  if (threadIdx.x != 5) core::mma<BFloat16>(c, a, b);
  __syncthreads();
}

__global__ void multiply_behind_a_lane_that_returns(const Pack16*) {
  float c[4] = {};
  const uint32_t a[4] = {}, b[2] = {};
  if (threadIdx.x == 5) return;
  core::mma<BFloat16>(c, a, b);
}

__global__ void multiply_in_part_of_a_warp(const Pack16*) {
  float c[4] = {};
  const uint32_t a[4] = {}, b[2] = {};
  core::mma<BFloat16>(c, a, b);
}

bool returns_at_all(void (*kernel)(const Pack16*), int threads = 32) {
  const std::vector<Pack16> in(64);
  run(kernel, threads, in.data());
  return true;
}

const std::map<std::string, std::function<bool()>> kCases = {
    {"mma_bfloat16", product_is_right<BFloat16, float, 16>},
    {"mma_float16", product_is_right<Float16, float, 16>},
    {"mma_int8", product_is_right<int8_t, int32_t, 32>},
    {"matrices", matrices_are_right<false>},
    {"matrices_transposed", matrices_are_right<true>},
    {"copy_groups", groups_land_in_turn},
    {"copies_for_others", copies_reach_others<true, true>},
    {"copies_without_wait", copies_reach_others<false, true>},
    {"copies_without_barrier", copies_reach_others<true, false>},
    {"never_wait", [] { return returns_at_all(never_wait); }},
    {"copy_past_the_array", [] { return returns_at_all(copy_past_the_array); }},
    {"copy_from_between", [] { return returns_at_all(copy_from_between); }},
    {"read_rows_from_between", [] { return returns_at_all(read_rows_from_between); }},
    {"read_rows_past_the_array", [] { return returns_at_all(read_rows_past_the_array); }},
    {"multiply_without_a_lane", [] { return returns_at_all(multiply_without_a_lane); }},
    {"multiply_behind_a_lane_that_returns", [] { return returns_at_all(multiply_behind_a_lane_that_returns); }},
    {"multiply_in_part_of_a_warp", [] { return returns_at_all(multiply_in_part_of_a_warp, 16); }},
};

}  // namespace

int main(int argc, char** argv) {
  const auto found = kCases.find(argc == 2 ? argv[1] : "");
  if (found == kCases.end()) return 2;
  return found->second() ? 0 : 1;
}
