// Codes of rows, gathered rows, products with codes and draws of a device, over buffers of exactly the right size, for
// the sanitizers to watch. Exit 0: the results are right.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core_device.h"

namespace {

constexpr uint16_t kOne = 0x3f80, kPoison = 0xffff;  // in bfloat16

using Numbers = std::vector<uint16_t>;

template <typename T>
bool all(const std::vector<T>& values, T value) {
  return std::all_of(values.begin(), values.end(), [value](T found) { return found == value; });
}

// The bits of a whole number below 256 in bfloat16.
uint16_t bfloat16(int number) {
  const auto value = static_cast<float>(number);
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

// Ones as codes, normed ones, and gated ones. The widths move in packs, and entry by entry.
bool rows_become_codes(int rows, int width) {
  const Numbers x(rows * width, kOne), weight(width, kOne);
  Numbers total(rows * width, kPoison);
  std::vector<int8_t> plain(rows * width, 0), normed(rows * width, 0), gated(rows * width, 0);
  std::vector<float> scales(rows, 0.0f);
  const CoreQuantizeRows quantize = {x.data(), plain.data(),  scales.data(),      rows,
                                     width,    CORE_BFLOAT16, CORE_ROW_CODES_INT8};
  const CoreRmsNormCodes norm = {x.data(), x.data(), weight.data(), total.data(),  normed.data(),      scales.data(),
                                 rows,     width,    1e-6f,         CORE_BFLOAT16, CORE_ROW_CODES_INT8};
  const CoreGatedRows gate = {x.data(), x.data(),      gated.data(),   scales.data(),      rows, width, width,
                              width,    CORE_BFLOAT16, CORE_GATE_SILU, CORE_ROW_CODES_INT8};
  return core_quantize_rows(&quantize, nullptr) == CORE_OK && core_rms_norm_codes(&norm, nullptr) == CORE_OK &&
         core_gated_rows(&gate, nullptr) == CORE_OK && all<int8_t>(plain, 127) && all<int8_t>(normed, 127) &&
         all<int8_t>(gated, 127) && all<uint16_t>(total, bfloat16(2));
}

bool rows_are_gathered(int width) {
  const Numbers table(3 * width, kOne);
  const std::vector<int32_t> ids = {2, 0};
  Numbers out(2 * width, kPoison);
  const CoreGatherRows gather = {table.data(), ids.data(), out.data(), 2, width, 3, CORE_BFLOAT16};
  return core_gather_rows(&gather, nullptr) == CORE_OK && all(out, kOne);
}

// A matrix of ones.
class Ones {
 public:
  Ones(int bits, int outputs, int inputs) : zero_(bits == 4 ? 8 : 128) {
    matrix = {nullptr, outputs, inputs, bits, 32, CORE_FLOAT16, 1, zero_, CORE_BFLOAT16};
    data_.reset(static_cast<unsigned char*>(aligned_alloc(16, core_quantized_bytes(&matrix))));
    matrix.data = data_.get();
    const int groups = (inputs + 31) / 32;
    const std::vector<uint8_t> codes(outputs * inputs, static_cast<uint8_t>(zero_ + 2));
    const std::vector<float> scales(outputs * groups, 1.0f), offsets(outputs * groups, -1.0f);
    const CoreQuantizedPack pack = {&matrix, codes.data(), scales.data(), offsets.data(), 0, outputs};
    if (core_quantized_pack(&pack) != CORE_OK) abort();
  }

  CoreQuantized matrix;

 private:
  struct Free {
    void operator()(unsigned char* memory) const { free(memory); }
  };

  int zero_;
  std::unique_ptr<unsigned char, Free> data_;
};

bool products_are_right(int bits, int outputs, int inputs, int rows, int splits) {
  const Ones ones(bits, outputs, inputs);
  const Numbers x(rows * inputs, kOne), bias(outputs, kOne);
  Numbers out(rows * outputs, kPoison), weights(outputs * inputs, kPoison);
  std::vector<float> scratch(splits * rows * outputs);
  const CoreQuantizedLinear linear = {ones.matrix, x.data(), bias.data(), out.data(), scratch.data(), rows, splits};
  const CoreUnpackRows whole = {ones.matrix, nullptr, weights.data(), outputs, 0};
  return core_quantized_linear(&linear, nullptr) == CORE_OK && core_unpack_rows(&whole, nullptr) == CORE_OK &&
         all(out, bfloat16(inputs + 1)) && all(weights, kOne);
}

// Two rows of which one changes, with all cuts; an id far above the others is drawn.
bool draws_are_right(int vocab) {
  const int best = vocab / 2;
  std::vector<float> logits(2 * vocab, 0.0f), scratch(2 * vocab);
  logits[best] = logits[vocab + best] = 60.0f;
  const std::vector<int32_t> penalized = {0, vocab - 1, vocab}, masked = {1};
  const std::vector<double> penalties = {1.0, 1.0, 1.0};
  const std::vector<uint32_t> allowed((vocab + 31) / 32, ~0u);
  const CoreLogitChanges changes = {penalized.data(),
                                    penalties.data(),
                                    nullptr,
                                    nullptr,
                                    masked.data(),
                                    allowed.data(),
                                    1.1f,
                                    3,
                                    0,
                                    1,
                                    static_cast<int32_t>(allowed.size())};
  std::vector<CoreSampling> sampling(2, CoreSampling{1.0, 0.9, 0.01, 7, nullptr, 40, 0, 0, 1, 20});
  sampling[1].changes = &changes;
  std::vector<CoreSampled> sampled(2);
  std::vector<int32_t> ids(2 * CORE_TOP_LOGPROBS);
  std::vector<double> logprobs(2 * CORE_TOP_LOGPROBS);
  const CoreSampleRows sample = {
      logits.data(), sampling.data(), sampled.data(), ids.data(), logprobs.data(), scratch.data(), 2,
      vocab,         CORE_FLOAT32};
  return core_sample_rows(&sample, nullptr) == CORE_OK && sampled[0].token == best && sampled[1].token == best &&
         ids[0] == best;
}

}  // namespace

int main() {
  bool right = rows_become_codes(3, 64) && rows_become_codes(2, 7) && rows_are_gathered(64) && rows_are_gathered(5);
  for (const int bits : {4, 8}) {
    right &= products_are_right(bits, 70, 72, 3, 1) && products_are_right(bits, 64, 33, 40, 2);
  }
  right &= draws_are_right(33) && draws_are_right(1000);
  if (!right) fprintf(stderr, "a result is wrong\n");
  return right ? 0 : 1;
}
