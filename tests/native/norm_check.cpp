// Runs RMSNorm over buffers of exactly the right size, for the sanitizers to watch. Exit 0: all results are right.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "core_device.h"

namespace {

size_t bytes_of(int dtype) {
  return dtype == CORE_FLOAT32 ? 4 : 2;
}

uint32_t one_in(int dtype) {
  return dtype == CORE_FLOAT32 ? 0x3f800000u : dtype == CORE_BFLOAT16 ? 0x3f80u : 0x3c00u;
}

// Ones, from the `skip`-th element on, in a heap block that ends with the last of them.
class Ones {
 public:
  Ones(int dtype, size_t count, size_t skip) : width_(bytes_of(dtype)), skip_(skip), bytes_((count + skip) * width_) {
    const uint32_t one = one_in(dtype);
    for (size_t i = 0; i < count + skip; i++) memcpy(bytes_.data() + i * width_, &one, width_);
  }
  void* data() { return bytes_.data() + skip_ * width_; }

 private:
  size_t width_, skip_;
  std::vector<unsigned char> bytes_;
};

bool all_ones(int dtype, void* data, size_t count) {
  Ones expected(dtype, count, 0);
  return memcmp(data, expected.data(), count * bytes_of(dtype)) == 0;
}

// With eps 0 the norm of equal positive numbers is 1, whatever they are.
bool check(int dtype, int64_t rows, int64_t hidden, bool with_residual, size_t skip) {
  const size_t count = static_cast<size_t>(rows * hidden);
  Ones x(dtype, count, skip), residual(dtype, count, skip), weight(dtype, hidden, skip), out(dtype, count, skip);
  CoreRmsNorm args{};
  args.x = x.data();
  args.weight = weight.data();
  args.out = out.data();
  if (with_residual) args.residual = args.residual_out = residual.data();
  args.rows = rows;
  args.hidden = hidden;
  args.dtype = dtype;
  memset(out.data(), 0xff, count * bytes_of(dtype));
  const CoreStatus status = core_rms_norm(&args, nullptr);
  if (status == CORE_OK && all_ones(dtype, out.data(), count)) return true;
  fprintf(stderr, "dtype %d rows %ld hidden %ld residual %d skip %zu: %s\n", dtype, rows, hidden, with_residual, skip,
          core_status_text(status));
  return false;
}

}  // namespace

int main() {
  bool right = true;
  for (const int dtype : {CORE_FLOAT32, CORE_BFLOAT16, CORE_FLOAT16}) {
    for (const int64_t hidden : {1, 7, 64, 576, 1000, 2056, 4104, 8200, 16392}) {
      for (const bool with_residual : {false, true}) {
        for (const size_t skip : {0, 1}) right &= check(dtype, hidden > 1000 ? 1 : 3, hidden, with_residual, skip);
      }
    }
  }
  return right ? 0 : 1;
}
