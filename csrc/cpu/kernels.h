// What a program asks of the kernels, and what they are given. Kernels are compiled once for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core_program.h"
#include "cpu/kv.h"

namespace core {

// ---- ops: the structs of core_program.h, with what they point to copied ----

struct EmbedOp {
  CoreWeight table;
  CoreValue out;
};

struct Projection {
  CoreWeight weight;
  const float* bias;
  CoreValue out;
};

struct LinearOp {
  CoreValue x;
  Projection projections[3];
  int32_t count;
  int32_t activations;
  int32_t gate = 0;   // CoreGate: instead of two projections, activation(first) * second is written; 0: none
  CoreValue gated{};  // where
};

// ---- one step ----

// Rows of one sequence that attend together: count rows from `first` on, in the sequence.
struct QueryTile {
  int32_t sequence;
  int32_t first;
  int32_t count;
};

// Positions of a tile, so that it has at most kTileQueries queries of one KV head.
constexpr int64_t kTileQueries = 96;
constexpr int64_t kTilePositions = 32;

// What the kernels know of the step, the same for all threads.
struct Step {
  const CoreShape* shape;
  const CoreBatch* batch;
  const int32_t* positions;  // [num_tokens]
  const int32_t* sequence;   // [num_tokens] number of each row's sequence
  const int32_t* first_row;  // [num_sequences] row of its first token
  const QueryTile* tiles;    // [num_tiles]
  int32_t num_tiles;
  int32_t threads;
  int32_t nodes;
  int32_t longest;  // positions of the longest sequence, this step's included
  float* workspace;
  std::byte* shared;  // room of the op that runs, aligned to 64
  KvPool kv;
  const LinearOp* fed = nullptr;  // the next op, where it reads what this one writes, row by row
  bool ready = false;             // whether the op before has brought this one's rows into the forms that it wants

  [[gnu::always_inline]] int64_t rows(const CoreValue& value) const {
    return value.rows == CORE_ROWS_TOKENS ? batch->num_tokens : batch->num_logits;
  }
  [[gnu::always_inline]] float* row(const CoreValue& value, int64_t row) const {
    return workspace + value.offset + row * value.width;
  }
};

// What one thread has for itself.
struct Thread {
  int32_t number;
  int32_t node;
  std::byte* room;     // aligned to 64; keeps what jobs of the same phase left there
  bool begun = false;  // whether this thread has run jobs of this phase before
};

// ---- kernels ----

// A part of an op. Its jobs may run in any order, on any thread, and write nothing that another of them reads.
struct Phase {
  // Number of jobs; 0 skips the phase.
  int64_t (*jobs)(const void* op, const Step& step);
  // Runs jobs first ... last - 1.
  void (*run)(const void* op, const Step& step, int64_t first, int64_t last, Thread& thread);
  // Instead of jobs: number of a memory node's jobs, which its own threads run; node 0 has some unless no node has.
  int64_t (*node_jobs)(const void* op, const Step& step, int32_t node) = nullptr;
};

// How an op runs: its phases one after the other, every job of one before the first of the next.
struct Kernel {
  static constexpr int kPhases = 2;
  Phase phases[kPhases];
  // Bytes of Step::shared and of Thread::room that the op needs for the largest batch; null: none.
  int64_t (*shared_bytes)(const void* op, const CoreShape& shape, int32_t threads);
  int64_t (*room_bytes)(const void* op, const CoreShape& shape, int32_t threads);
};

// One for each op of a program, which takes what is recorded of it.
struct Kernels {
#define CORE_OP_KERNEL(op, Args) Kernel op;
  CORE_PROGRAM_OPS(CORE_OP_KERNEL)
#undef CORE_OP_KERNEL
};

}  // namespace core
