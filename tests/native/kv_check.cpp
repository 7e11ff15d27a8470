// Stores keys and values in blocks of a device, attends to them and copies them, over buffers of exactly the right
// size, for the sanitizers to watch. All numbers are ones, and so are all results. Exit 0: they are.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "core_device.h"

namespace {

constexpr uint16_t kOne = 0x3f80, kPoison = 0xffff;  // in bfloat16
constexpr int kKvHeads = 2, kHeads = 4, kBlockSize = 32, kTokens = 37, kSequences = 2;
constexpr int kBlocks = kSequences * 2;

using Numbers = std::vector<uint16_t>;

bool all_ones(const Numbers& numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](uint16_t number) { return number == kOne; });
}

// Of ones that are spread for attention: the first entry of each block, where heads are spread.
bool all_ready(const Numbers& queries, CoreKv kv, int dim) {
  if (kv != CORE_KV_UINT4) return all_ones(queries);
  for (size_t i = 0; i < queries.size(); i++) {
    if (queries[i] != (i % dim % (dim & -dim) == 0 ? kOne : 0)) return false;
  }
  return true;
}

// Two sequences of 37 tokens in blocks of one layer.
class Pool {
 public:
  Pool(CoreKv kv, int dim) : dim_(dim) {
    blocks_.kv_heads = kKvHeads;
    blocks_.head_dim = dim;
    blocks_.block_size = kBlockSize;
    blocks_.kv = kv;
    blocks_.count = kBlocks;
    blocks_.stride = core_kv_block_bytes(&blocks_);
    bytes_.assign(blocks_.stride * kBlocks, 0xff);
    blocks_.data = bytes_.data();
  }

  bool append() {
    const int rows = kTokens * kSequences, width = (kHeads + 2 * kKvHeads) * dim_;
    Numbers given(rows * width, kOne), weight(dim_, kOne), q_out(rows * kHeads * dim_, kPoison);
    std::vector<int32_t> positions(rows), slots(rows);
    std::vector<float> cos(kTokens * dim_ / 2, 1.0f), sin(kTokens * dim_ / 2, 0.0f);
    for (int row = 0; row < rows; row++) {
      positions[row] = row % kTokens;
      slots[row] = row / kTokens * 2 * kBlockSize + row % kTokens;
    }
    CoreAppendKv args{};
    args.q = given.data();
    args.k = given.data() + kHeads * dim_;
    args.v = given.data() + (kHeads + kKvHeads) * dim_;
    args.q_norm = args.k_norm = weight.data();
    args.cos = cos.data();
    args.sin = sin.data();
    args.positions = positions.data();
    args.slots = slots.data();
    args.q_out = q_out.data();
    args.blocks = blocks_;
    args.q_stride = args.k_stride = args.v_stride = width;
    args.tokens = rows;
    args.heads = kHeads;
    args.rotary_dim = dim_;
    return core_append_kv(&args, nullptr) == CORE_OK && all_ready(q_out, static_cast<CoreKv>(blocks_.kv), dim_);
  }

  // Each sequence from its position `first` on, in ranges of so many tokens.
  bool decode(int first, int tokens) {
    const int most = (kTokens - first + tokens - 1) / tokens;
    Numbers q(kSequences * kHeads * dim_, kOne), out(q.size(), kPoison);
    std::vector<float> parts(q.size() * most), sums(kSequences * kHeads * most * 2);
    std::vector<int32_t> arrived(kSequences * kHeads);
    std::vector<CoreDecodeTask> tasks;
    for (int part = 0; part < most; part++) {
      const int begin = first + part * tokens, end = std::min(begin + tokens, kTokens);
      for (int sequence = 0; sequence < kSequences; sequence++)
        tasks.push_back({sequence, sequence, begin, end, part, most});
    }
    const std::vector<int32_t> list = {0, static_cast<int32_t>(tasks.size())};
    auto args = attention<CoreDecodeAttention>(q, out);
    args.tasks = tasks.data();
    args.list = list.data();
    args.parts = parts.data();
    args.part_sums = sums.data();
    args.arrived = arrived.data();
    args.most_parts = most;
    args.multiprocessors = 1;
    return core_decode_attention(&args, nullptr) == CORE_OK && all_ones(out) &&
           arrived == decltype(arrived)(arrived.size());
  }

  bool prefill(int window) {
    Numbers q(kSequences * kTokens * kHeads * dim_, kOne), out(q.size(), kPoison);
    const std::vector<int32_t> firsts = {0, kTokens, 2 * kTokens};
    const std::vector<int32_t> rows = {0, 1}, list = {0, kSequences};
    auto args = attention<CorePrefillAttention>(q, out);
    args.table_rows = rows.data();
    args.firsts = firsts.data();
    args.stored = stored_.data();
    args.window = window;
    args.list = list.data();
    args.rows = kSequences * kTokens;
    return core_prefill_attention(&args, nullptr) == CORE_OK && all_ones(out);
  }

  bool copy() {
    std::vector<unsigned char> other(blocks_.stride);
    const std::vector<int32_t> pairs = {kBlocks - 1, 0};
    CoreCopyBlocks args{};
    args.source = bytes_.data();
    args.target = other.data();
    args.pairs = pairs.data();
    args.bytes = args.source_stride = args.target_stride = blocks_.stride;
    args.count = args.pieces = 1;
    return core_copy_blocks(&args, nullptr) == CORE_OK &&
           std::equal(other.begin(), other.end(), bytes_.end() - blocks_.stride);
  }

 private:
  template <typename Args>
  Args attention(const Numbers& q, Numbers& out) {
    Args args{};
    args.q = q.data();
    args.out = out.data();
    args.tables = tables_.data();
    args.blocks = blocks_;
    args.q_stride = kHeads * dim_;
    args.sequences = kSequences;
    args.heads = kHeads;
    args.max_blocks = 2;
    args.scale = 0.125f;
    return args;
  }

  int dim_;
  CoreKvBlocks blocks_{};
  std::vector<unsigned char> bytes_;
  std::vector<int32_t> tables_ = {0, 1, 2, 3}, stored_ = {kTokens, kTokens};
};

bool check(CoreKv kv, int dim) {
  Pool pool(kv, dim);
  const bool right = pool.append() && pool.copy() && pool.decode(0, kTokens) && pool.decode(17, 16) &&
                     pool.prefill(dim % 3 == 0 ? 0 : 20);
  if (!right) fprintf(stderr, "storage %d, head dimension %d\n", kv, dim);
  return right;
}

}  // namespace

int main() {
  bool right = true;
  for (const CoreKv kv : {CORE_KV_BFLOAT16, CORE_KV_INT8, CORE_KV_UINT4}) {
    for (const int dim : {64, 80, 96, 192, 256}) right &= check(kv, dim);
  }
  return right ? 0 : 1;
}
