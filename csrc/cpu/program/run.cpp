// Replaying a program: one call per step.
#include <algorithm>
#include <new>

#include "common/check.h"
#include "cpu/program/program.h"
#include "cpu/weight.h"

namespace core {
namespace {

constexpr int64_t kLine = 64;
// A step of so few tokens has phases of microseconds, in which threads claim more jobs at a time.
constexpr int32_t kFewTokens = 8;

int64_t up_to_line(int64_t bytes) {
  return (bytes + kLine - 1) / kLine * kLine;
}

// Offsets in the memory of a program.
struct Places {
  int64_t positions, sequence, first_row, tiles, adapted, adapter_tiles, shared, scratch, scratch_bytes, end;

  Places(const CoreProgram& program)
      : positions(up_to_line(program.shape.workspace * int64_t{sizeof(float)})),
        sequence(positions + up_to_line(program.shape.max_tokens * int64_t{sizeof(int32_t)})),
        first_row(sequence + up_to_line(program.shape.max_tokens * int64_t{sizeof(int32_t)})),
        tiles(first_row + up_to_line(program.shape.max_sequences * int64_t{sizeof(int32_t)})),
        adapted(tiles + up_to_line(program.shape.max_tokens * int64_t{sizeof(QueryTile)})),
        adapter_tiles(adapted + up_to_line(adapted_tokens(program) * int64_t{sizeof(int32_t)})),
        shared(adapter_tiles + up_to_line(adapted_tokens(program) * int64_t{sizeof(AdapterTile)})),
        scratch(shared + up_to_line(program.shared_bytes)),
        scratch_bytes(kLine + up_to_line(program.scratch_bytes)),
        end(scratch + program.cpu.pool.size() * scratch_bytes) {}

 private:
  static int64_t adapted_tokens(const CoreProgram& program) {
    return program.shape.adapters == 0 ? 0 : program.shape.max_tokens;
  }
};

int32_t tile_positions(const CoreShape& shape) {
  const int64_t group = shape.heads / shape.kv_heads;
  return static_cast<int32_t>(std::clamp<int64_t>(kTileQueries / group, 1, kTilePositions));
}

// True if the rows of a sequence, and its context, lie in blocks of the pool.
bool is_there(const CoreProgram& program, const CoreSequence& sequence) {
  const CoreShape& shape = program.shape;
  const int64_t context = int64_t{sequence.start} + sequence.length;
  if (sequence.length < 1 || sequence.start < 0 || context > shape.max_positions || sequence.blocks == nullptr) {
    return false;
  }
  if (sequence.adapter < 0 || sequence.adapter > shape.adapters) return false;
  const int64_t blocks = (context + shape.block_size - 1) / shape.block_size;
  return std::all_of(sequence.blocks, sequence.blocks + blocks,
                     [&](int32_t block) { return block >= 0 && block < program.kv.num_blocks; });
}

void check_sequences(Check& check, const CoreProgram& program, const CoreBatch& batch) {
  int64_t rows = 0;
  for (int32_t i = 0; check.ok() && i < batch.num_sequences; i++) {
    check.that(is_there(program, batch.sequences[i]), CORE_BAD_BATCH, batch.sequences);
    rows += batch.sequences[i].length;
  }
  check.that(rows == batch.num_tokens, CORE_BAD_BATCH, batch.num_tokens);
}

void check_sampling(Check& check, const CoreBatch& batch) {
  for (int32_t i = 0; check.ok() && i < batch.num_logits; i++) {
    const int32_t top = batch.sampling[i].top_logprobs;
    check.that(top >= 0 && top <= CORE_TOP_LOGPROBS, CORE_BAD_BATCH, batch.sampling);
    if (top != 0) check.pointer(batch.top_ids).pointer(batch.top_logprobs);
  }
}

// True if all numbers of an array are in 0 ... most - 1.
bool are_below(const int32_t* numbers, int32_t count, int32_t most) {
  return std::all_of(numbers, numbers + count, [most](int32_t number) { return number >= 0 && number < most; });
}

CoreStatus check_batch(const CoreProgram& program, const CoreBatch& batch) {
  const CoreShape& shape = program.shape;
  Check check(&batch);
  check.that(batch.num_tokens >= 0 && batch.num_tokens <= shape.max_tokens, CORE_BAD_BATCH, batch.num_tokens);
  check.that(batch.num_sequences >= 0 && batch.num_sequences <= shape.max_sequences, CORE_BAD_BATCH,
             batch.num_sequences);
  check.that(batch.num_logits >= 0 && batch.num_logits <= shape.max_logits, CORE_BAD_BATCH, batch.num_logits);
  if (batch.num_tokens != 0) check.pointer(batch.token_ids, 4);
  if (batch.num_sequences != 0) check.pointer(batch.sequences, 4);
  if (batch.num_logits != 0) check.pointer(batch.wanted, 4).pointer(batch.sampling, 4).pointer(batch.sampled, 4);
  if (!check.ok()) return check.result();
  check_sequences(check, program, batch);
  check_sampling(check, batch);
  check.that(are_below(batch.token_ids, batch.num_tokens, shape.vocab), CORE_BAD_BATCH, batch.token_ids);
  check.that(are_below(batch.wanted, batch.num_logits, batch.num_tokens), CORE_BAD_BATCH, batch.wanted);
  return check.result();
}

// Write the rows of sequences with an adapter, those of one adapter together, and their tiles; return how many tiles.
int32_t tile_adapters(const CoreShape& shape, const CoreBatch& batch, const int32_t* first_row, int32_t* rows,
                      AdapterTile* tiles) {
  int32_t count = 0, num_tiles = 0;
  for (int32_t adapter = 1; adapter <= shape.adapters; adapter++) {
    const int32_t begin = count;
    for (int32_t i = 0; i < batch.num_sequences; i++) {
      if (batch.sequences[i].adapter != adapter) continue;
      for (int32_t offset = 0; offset < batch.sequences[i].length; offset++) rows[count++] = first_row[i] + offset;
    }
    for (int32_t first = begin; first < count; first += kAdapterRows) {
      tiles[num_tiles++] = {adapter - 1, first, std::min(kAdapterRows, count - first)};
    }
  }
  return num_tiles;
}

// The phases of a program's ops, as work for the pool.
class Replay {
 public:
  Replay(CoreProgram& program, const Step& step) : program_(program), places_(program), step_(step) {
    for (int32_t thread = 0; thread < step.threads; thread++) phase_begun(thread) = -1;
  }

  bool next(int64_t* jobs) {
    while (++phase_ < Kernel::kPhases * std::ssize(program_.ops)) {
      if (program_.lost()) return false;
      if (phase_ % Kernel::kPhases == 0) join_to_next();
      if (deal_out(jobs)) return true;
    }
    return false;
  }

  // What changes with a phase.
  const void* news() const { return &phase_; }

  void run(int64_t first, int64_t last, int32_t number) const {
    int64_t& begun = phase_begun(number);
    const int32_t node = program_.cpu.pool.node_of(number);
    Thread thread{number, node, scratch(number) + kLine, begun == phase_};
    begun = phase_;
    current().run(op(), step_, first_[node] + first, first_[node] + last, thread);
  }

 private:
  // Set in the step whether the previous op has prepared this op's rows, and whether this one prepares the next op's.
  void join_to_next() {
    step_.ready = step_.fed != nullptr;
    step_.fed = recorded().feeds ? static_cast<const LinearOp*>((&recorded() + 1)->data()) : nullptr;
  }

  const RecordedOp& recorded() const { return program_.ops[static_cast<size_t>(phase_ / Kernel::kPhases)]; }
  const Phase& current() const { return recorded().kernel->phases[phase_ % Kernel::kPhases]; }
  const void* op() const { return recorded().data(); }

  // Write the number of jobs of each node; true if there are any.
  bool deal_out(int64_t* jobs) {
    const Phase& phase = current();
    if (phase.run == nullptr) return false;
    const int64_t all = phase.jobs == nullptr ? 0 : phase.jobs(op(), step_);
    for (int32_t node = 0; node < step_.nodes; node++) {
      const NodePart part(all, step_.nodes, node);
      first_[node] = part.first;
      jobs[node] = phase.node_jobs == nullptr ? part.count : phase.node_jobs(op(), step_, node);
    }
    return jobs[0] > 0;
  }

  // The scratch of a thread begins with the number of the phase whose jobs it last ran.
  std::byte* scratch(int32_t thread) const {
    return program_.memory.get() + places_.scratch + thread * places_.scratch_bytes;
  }
  int64_t& phase_begun(int32_t thread) const { return *reinterpret_cast<int64_t*>(scratch(thread)); }

  CoreProgram& program_;
  const Places places_;
  alignas(64) Step step_;  // whose end, phase_ and the first of first_ share a cache line
  int64_t phase_ = -1;
  int64_t first_[kMostNodes];  // number of each node's first job
};

}  // namespace
}  // namespace core

int64_t CoreProgram::workspace_bytes() const {
  return core::Places(*this).end;
}

CoreStatus CoreProgram::bind(void* pool, int64_t num_blocks) {
  if (pool == nullptr) return core::status(CORE_NULL_POINTER, 0);
  if (num_blocks < 1 || num_blocks > core::kMaxExtent) return core::status(CORE_BAD_EXTENT, 0);
  if (memory == nullptr) {
    memory.reset(static_cast<std::byte*>(core::allocate(workspace_bytes())));
  }
  if (memory == nullptr) return core::status(CORE_NO_MEMORY, 0);
  // The pool stays the caller's, who keeps it until the program is destroyed or bound to another one.
  kv.base = static_cast<std::byte*>(pool);
  kv.num_blocks = num_blocks;
  return CORE_OK;
}

CoreStatus CoreProgram::join(CoreExchange* exchange) {
  if (exchange == nullptr) return core::status(CORE_NULL_POINTER, 0);
  if (exchange->rank != shape.rank || exchange->ranks != shape.ranks || exchange->part_bytes < part_bytes) {
    return core::status(CORE_BAD_SHAPE, 0);
  }
  // Borrowed as well: the caller closes it after the program.
  this->exchange = exchange;
  return CORE_OK;
}

bool CoreProgram::lost() const {
  return exchange != nullptr && exchange->lost();
}

core::Step CoreProgram::step_of(const CoreBatch& batch) {
  const core::Places places(*this);
  auto* positions = reinterpret_cast<int32_t*>(memory.get() + places.positions);
  auto* number = reinterpret_cast<int32_t*>(memory.get() + places.sequence);
  auto* first_row = reinterpret_cast<int32_t*>(memory.get() + places.first_row);
  auto* tiles = reinterpret_cast<core::QueryTile*>(memory.get() + places.tiles);
  const int32_t tile_positions = core::tile_positions(shape);
  int32_t row = 0, num_tiles = 0, longest = 0;
  for (int32_t i = 0; i < batch.num_sequences; i++) {
    const CoreSequence& sequence = batch.sequences[i];
    first_row[i] = row;
    longest = std::max(longest, sequence.start + sequence.length);
    for (int32_t offset = 0; offset < sequence.length; offset++, row++) {
      positions[row] = sequence.start + offset;
      number[row] = i;
    }
    for (int32_t first = 0; first < sequence.length; first += tile_positions) {
      tiles[num_tiles++] = {i, first, std::min(tile_positions, sequence.length - first)};
    }
  }
  auto* adapted = reinterpret_cast<int32_t*>(memory.get() + places.adapted);
  auto* adapter_tiles = reinterpret_cast<core::AdapterTile*>(memory.get() + places.adapter_tiles);
  const int32_t num_adapter_tiles = core::tile_adapters(shape, batch, first_row, adapted, adapter_tiles);
  auto* workspace = reinterpret_cast<float*>(memory.get());
  std::byte* shared = memory.get() + places.shared;
  return {&shape,
          &batch,
          positions,
          number,
          first_row,
          tiles,
          num_tiles,
          adapted,
          adapter_tiles,
          num_adapter_tiles,
          cpu.pool.size(),
          cpu.pool.nodes(),
          longest,
          workspace,
          shared,
          kv,
          exchange,
          nullptr,
          false};
}

CoreStatus CoreProgram::run(const CoreBatch& batch) {
  if (kv.base == nullptr || (part_bytes != 0 && exchange == nullptr)) return core::status(CORE_NOT_BOUND, 0);
  if (const CoreStatus status = core::check_batch(*this, batch); status != CORE_OK) return status;
  // The step points into the batch, which is the caller's again when this returns: no thread works on it then.
  core::Replay replay(*this, step_of(batch));
  cpu.pool.run({[](void* context, int64_t* jobs) { return static_cast<core::Replay*>(context)->next(jobs); },
                [](void* context, int64_t first, int64_t last, int32_t thread) {
                  static_cast<const core::Replay*>(context)->run(first, last, thread);
                },
                &replay, replay.news(), batch.num_tokens <= core::kFewTokens ? 1 : 4});
  return lost() ? core::status(CORE_RANK_LOST, 0) : CORE_OK;
}

int64_t core_program_workspace_bytes(const CoreProgram* program) {
  return program == nullptr ? 0 : program->workspace_bytes();
}

int64_t core_program_block_bytes(const CoreProgram* program) {
  return program == nullptr ? 0 : program->kv.block_bytes() * program->shape.layers;
}

CoreStatus core_program_bind(CoreProgram* program, void* pool, int64_t num_blocks) {
  return program == nullptr ? core::status(CORE_NULL_POINTER, 0) : program->bind(pool, num_blocks);
}

int64_t core_program_part_bytes(const CoreProgram* program) {
  return program == nullptr ? 0 : program->part_bytes;
}

CoreStatus core_program_join(CoreProgram* program, CoreExchange* exchange) {
  return program == nullptr ? core::status(CORE_NULL_POINTER, 0) : program->join(exchange);
}

CoreStatus core_program_run(CoreProgram* program, const CoreBatch* batch) {
  if (program == nullptr || batch == nullptr) return core::status(CORE_NULL_POINTER, 0);
  return program->run(*batch);
}

const float* core_program_value(const CoreProgram* program, const CoreValue* value) {
  if (program == nullptr || value == nullptr || program->memory == nullptr) return nullptr;
  return reinterpret_cast<const float*>(program->memory.get()) + value->offset;
}
