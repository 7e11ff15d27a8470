// Runs a small model of every storage format, on every instruction set of this machine, in buffers without a byte to
// spare, for the sanitizers to watch. Exit 0: all instruction sets and threads agree on the logits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "core_program.h"

namespace {

constexpr int32_t kVocab = 70, kHidden = 48, kHeads = 6, kKvHeads = 2, kHeadDim = 16, kInner = 100;
constexpr int32_t kPositions = 600, kBlock = 16, kBlocks = 80, kTokens = 40, kLogits = 4;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Threads, and the memory nodes that they and the matrices are dealt out to.
struct Team {
  CoreCpu* cpu;
  int32_t nodes;
};

// A matrix of random numbers or codes in a block that ends with its last byte.
struct Matrix {
  CoreWeight weight{};
  std::unique_ptr<void, Free> data;

  Matrix(const Team& team, std::mt19937& random, int32_t format, int64_t outputs, int64_t inputs, int32_t group = 0) {
    const bool integer = format == CORE_FORMAT_INT8 || format == CORE_FORMAT_INT4;
    weight.outputs = outputs;
    weight.inputs = inputs;
    weight.format = format;
    if (integer) {
      weight.group = group;
      weight.scales = group == 32 ? CORE_FLOAT16 : CORE_FLOAT32;
      weight.offsets = group == 16;
      weight.zero = format == CORE_FORMAT_INT8 ? 128 : 8;
    }
    weight.shards = team.nodes;
    weight.stride = 64;  // Some, until it is known how large a shard is.
    weight.stride = core_weight_bytes(&weight);
    data.reset(std::aligned_alloc(64, static_cast<size_t>(weight.stride * team.nodes)));
    weight.data = data.get();
    const int64_t groups = group == 0 ? 1 : (inputs + group - 1) / group;
    std::vector<float> scales(static_cast<size_t>(outputs * groups), format == CORE_FORMAT_INT8 ? 0.002f : 0.03f);
    std::vector<float> offsets(scales.size(), 0.01f);
    const std::vector<uint8_t> rows = contents(random, format, static_cast<size_t>(outputs * inputs));
    const CorePack pack{
        &weight, rows.data(), integer ? scales.data() : nullptr, weight.offsets != 0 ? offsets.data() : nullptr,
        0,       outputs};
    if (core_weight_pack(team.cpu, &pack) != CORE_OK) std::abort();
  }

  static std::vector<uint8_t> contents(std::mt19937& random, int32_t format, size_t count) {
    std::uniform_real_distribution<float> number(-0.3f, 0.3f);
    std::vector<uint8_t> bytes;
    for (size_t i = 0; i < count; i++) {
      const float value = number(random);
      uint32_t bits;
      std::copy_n(reinterpret_cast<const uint8_t*>(&value), 4, reinterpret_cast<uint8_t*>(&bits));
      if (format == CORE_FORMAT_INT8 || format == CORE_FORMAT_INT4) {
        bytes.push_back(static_cast<uint8_t>(random() % (format == CORE_FORMAT_INT8 ? 256 : 16)));
        continue;
      }
      // As float16: half of the smallest exponents, which is as good as any for a test of places.
      const uint32_t stored = format == CORE_FORMAT_FLOAT32    ? bits
                              : format == CORE_FORMAT_BFLOAT16 ? bits >> 16
                                                               : 0x2c00;
      for (int byte = 0; byte < (format == CORE_FORMAT_FLOAT32 ? 4 : 2); byte++) {
        bytes.push_back(static_cast<uint8_t>(stored >> (8 * byte)));
      }
    }
    return bytes;
  }
};

struct Storage {
  const char* name;
  int32_t format, group, kv, activations;
  double limit;  // of the distance between two instruction sets' logits, as a share of the largest
};

class Model {
 public:
  Model(const Team& team, const Storage& storage)
      : random_(7),
        embed_(team, random_, storage.format, kVocab, kHidden, storage.group),
        q_(team, random_, storage.format, kHeads * kHeadDim, kHidden, storage.group),
        k_(team, random_, CORE_FORMAT_FLOAT32, kKvHeads * kHeadDim, kHidden),
        v_(team, random_, storage.format, kKvHeads * kHeadDim, kHidden, storage.group),
        o_(team, random_, storage.format, kHidden, kHeads * kHeadDim, storage.group),
        gate_(team, random_, storage.format, kInner, kHidden, storage.group),
        up_(team, random_, storage.format, kInner, kHidden, storage.group),
        down_(team, random_, storage.format, kHidden, kInner, storage.group),
        ones_(kHidden, 1.0f),
        bias_(kHeads * kHeadDim, 0.1f) {
    for (int32_t position = 0; position < kPositions; position++) {
      for (int32_t i = 0; i < kHeadDim / 2; i++) {
        const double angle = position / std::pow(1000.0, 2.0 * i / kHeadDim);
        cos_.push_back(static_cast<float>(std::cos(angle)));
        sin_.push_back(static_cast<float>(std::sin(angle)));
      }
    }
    record(team.cpu, storage);
  }
  ~Model() {
    core_program_destroy(program_);
    core_cpu_free(pool_);
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Logits of the wanted rows of the last of a few steps: chunks, single tokens, and a long context.
  std::vector<float> run() {
    std::vector<int32_t> long_blocks, short_blocks;
    for (int32_t i = 0; i < 40; i++) long_blocks.push_back(kBlocks - 1 - i);
    for (int32_t i = 0; i < 4; i++) short_blocks.push_back(i * 3);
    for (int32_t start = 0; start < 560; start += 40) {
      step({{long_blocks.data(), 40, start}}, {});
    }
    step({{long_blocks.data(), 1, 560}, {short_blocks.data(), 33, 0}}, {0, 33});
    step({{short_blocks.data(), 1, 33}}, {0});
    step({{short_blocks.data(), 17, 34}, {long_blocks.data(), 1, 561}}, {16, 17});
    step({{long_blocks.data(), 1, 562}, {short_blocks.data(), 1, 51}}, {0, 1});
    const float* logits = core_program_value(program_, &logits_);
    return {logits, logits + 2 * kVocab};
  }

 private:
  CoreValue value(int32_t width, int32_t rows = CORE_ROWS_TOKENS) {
    const CoreValue result{floats_, width, rows};
    floats_ += (int64_t{rows == CORE_ROWS_TOKENS ? kTokens : kLogits} * width + 15) / 16 * 16;
    return result;
  }

  void record(CoreCpu* cpu, const Storage& storage) {
    const CoreValue x = value(kHidden), residual = value(kHidden), normed = value(kHidden);
    const CoreValue q = value(kHeads * kHeadDim), k = value(kKvHeads * kHeadDim), v = value(kKvHeads * kHeadDim);
    const CoreValue mixed = value(kHeads * kHeadDim), gate = value(kInner), up = value(kInner);
    const CoreValue last = value(kHidden, CORE_ROWS_LOGITS);
    logits_ = value(kVocab, CORE_ROWS_LOGITS);
    const CoreShape shape{floats_,  kTokens,  4,      kLogits,    kPositions, 1, kHeads,
                          kKvHeads, kHeadDim, kBlock, storage.kv, kVocab,     0};
    const int32_t full = storage.activations;
    const CoreNorm before{ones_.data(), residual, {}, {}, normed, 1e-5f};
    const CoreNorm after{ones_.data(), x, residual, residual, normed, 1e-5f};
    const CoreLinear qkv{
        normed, {{&q_.weight, bias_.data(), q}, {&k_.weight, nullptr, k}, {&v_.weight, nullptr, v}}, 3, full};
    const CoreLinear out{mixed, {{&o_.weight, nullptr, x}}, 1, full};
    const CoreLinear inner{normed, {{&gate_.weight, nullptr, gate}, {&up_.weight, nullptr, up}}, 2, full};
    const CoreLinear down{gate, {{&down_.weight, nullptr, x}}, 1, full};
    const CoreLinear head{last, {{&embed_.weight, nullptr, logits_}}, 1, full};
    const CoreEmbed embed{&embed_.weight, residual};
    const CoreRopeAppend rope{cos_.data(), sin_.data(), nullptr, nullptr, nullptr, q, k, v, q, kHeadDim, 0, 0.0f};
    const CoreAttention attention{nullptr, q, mixed, 0, 0, 0.25f, 30.0f};
    const CoreGated gated{gate, up, gate, CORE_GATE_GELU_TANH};
    const CoreSelect select{normed, last};
    const CoreSample sample{logits_};
    CoreStatus status = core_program_create(cpu, &shape, &program_);
    for (const CoreStatus next : {status, core_program_embed(program_, &embed), core_program_norm(program_, &before),
                                  core_program_linear(program_, &qkv), core_program_rope_append(program_, &rope),
                                  core_program_attention(program_, &attention), core_program_linear(program_, &out),
                                  core_program_norm(program_, &after), core_program_linear(program_, &inner),
                                  core_program_gated(program_, &gated), core_program_linear(program_, &down),
                                  core_program_norm(program_, &after), core_program_select(program_, &select),
                                  core_program_linear(program_, &head), core_program_sample(program_, &sample)}) {
      if (status == CORE_OK) status = next;
    }
    pool_ = core_cpu_allocate(core_program_block_bytes(program_) * kBlocks);
    if (status == CORE_OK) status = core_program_bind(program_, pool_, kBlocks);
    require(status);
  }

  void step(const std::vector<CoreSequence>& sequences, const std::vector<int32_t>& wanted) {
    int32_t tokens = 0;
    for (const CoreSequence& sequence : sequences) tokens += sequence.length;
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < tokens; i++) ids.push_back((i * 31 + sequences[0].start) % kVocab);
    const std::vector<int32_t> masked = {3, kVocab - 1};
    const CoreLogitChanges changes{.masked = masked.data(), .repetition = 1, .masked_count = 2};
    const CoreSampling sampling{0.8, 0.9, 0.01, 5, &changes, 20, 1, 0, 1, 2};
    const std::vector<CoreSampling> samplings(wanted.size(), sampling);
    std::vector<CoreSampled> sampled(wanted.size());
    std::vector<int32_t> top_ids(wanted.size() * CORE_TOP_LOGPROBS);
    std::vector<double> top_logprobs(top_ids.size());
    const CoreBatch batch{ids.data(),
                          sequences.data(),
                          wanted.data(),
                          samplings.data(),
                          sampled.data(),
                          top_ids.data(),
                          top_logprobs.data(),
                          tokens,
                          static_cast<int32_t>(sequences.size()),
                          static_cast<int32_t>(wanted.size())};
    require(core_program_run(program_, &batch));
    for (const CoreSampled& one : sampled) {
      if (one.finite == 0 || one.token < 0 || one.token == 3 || one.token >= kVocab - 1 || !(one.logprob <= 0)) {
        std::fprintf(stderr, "drew %d with %g\n", one.token, one.logprob);
        std::exit(1);
      }
    }
  }

  static void require(CoreStatus status) {
    if (status == CORE_OK) return;
    std::fprintf(stderr, "%s (%d)\n", core_status_text(status), status >> 8);
    std::exit(1);
  }

  std::mt19937 random_;
  Matrix embed_, q_, k_, v_, o_, gate_, up_, down_;
  std::vector<float> ones_, bias_, cos_, sin_;
  int64_t floats_ = 0;
  CoreValue logits_{};
  CoreProgram* program_ = nullptr;
  void* pool_ = nullptr;
};

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0, largest = 0;
  for (size_t i = 0; i < a.size(); i++) {
    most = std::max(most, std::fabs(double{a[i]} - double{b[i]}));
    largest = std::max(largest, std::fabs(double{b[i]}));
  }
  return most / largest;
}

// The memory node of each thread.
const std::vector<int32_t> kTeams[] = {{0}, {0, 0, 0}, {0, 1, 1}};

bool agree(const Storage& storage) {
  std::vector<float> first;
  for (int32_t isa = CORE_ISA_AVX2; isa <= core_cpu_best_isa(); isa++) {
    if (core_cpu_has_isa(isa) == 0) continue;
    for (const std::vector<int32_t>& nodes : kTeams) {
      Team team{nullptr, *std::max_element(nodes.begin(), nodes.end()) + 1};
      const auto threads = static_cast<int32_t>(nodes.size());
      const CoreCpuOptions options{nullptr, nodes.data(), threads, isa};
      if (core_cpu_create(&options, &team.cpu) != CORE_OK) return false;
      const std::vector<float> logits = Model(team, storage).run();
      core_cpu_destroy(team.cpu);
      if (first.empty()) first = logits;
      if (const double far = distance(logits, first); !(far <= storage.limit)) {
        std::fprintf(stderr, "%s: isa %d with %d threads of %d nodes is %g away from isa 1\n", storage.name, isa,
                     threads, team.nodes, far);
        return false;
      }
    }
  }
  return true;
}

}  // namespace

int main() {
  const Storage storages[] = {
      {"float32", CORE_FORMAT_FLOAT32, 0, CORE_KV_FLOAT32, CORE_ACTIVATIONS_FULL, 1e-4},
      {"float16", CORE_FORMAT_FLOAT16, 0, CORE_KV_FLOAT32, CORE_ACTIVATIONS_FULL, 1e-4},
      {"bfloat16", CORE_FORMAT_BFLOAT16, 0, CORE_KV_BFLOAT16, CORE_ACTIVATIONS_FULL, 0.05},
      {"int8", CORE_FORMAT_INT8, 0, CORE_KV_INT8, CORE_ACTIVATIONS_FULL, 0.05},
      {"int8 in groups", CORE_FORMAT_INT8, 16, CORE_KV_BFLOAT16, CORE_ACTIVATIONS_INT8, 0.2},
      {"int4 in groups", CORE_FORMAT_INT4, 32, CORE_KV_UINT4, CORE_ACTIVATIONS_FULL, 0.2},
  };
  for (const Storage& storage : storages) {
    if (!agree(storage)) return 1;
  }
  return 0;
}
