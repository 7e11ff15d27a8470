// The interface between programs and kernels. Kernels are compiled once for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core_program.h"
#include "cpu/exchange.h"
#include "cpu/kv.h"
#include "cpu/weight.h"

namespace core {

// ---- ops: copies of the structs of core_program.h, including the CoreWeight that they point to ----

struct EmbedOp {
  CoreWeight table;
  CoreValue out;
};

struct Projection {
  CoreWeight weight;
  WeightLayout layout;
  const float* bias;
  CoreValue out;
};

struct LinearOp {
  CoreValue x;
  Projection projections[3];
  int32_t count;
  int32_t activations;
  int32_t gate = 0;   // CoreGate of a fused gate: activation(first) * second is written to `gated`; 0: none
  CoreValue gated{};  // output of the gate; the two projections are then not written
};

// ---- one step ----

// Rows of one sequence whose attention is one job: `count` rows from row `first` of the sequence on.
struct QueryTile {
  int32_t sequence;
  int32_t first;
  int32_t count;
};

// Rows of one adapter that are multiplied together: `count` entries of Step::adapted from `first` on.
struct AdapterTile {
  int32_t adapter;  // from 0
  int32_t first;
  int32_t count;
};

constexpr int32_t kAdapterRows = 16;  // rows of a tile

// Limits of a tile: queries of one KV head, and positions.
constexpr int64_t kTileQueries = 96;
constexpr int64_t kTilePositions = 32;

// The step, as kernels see it; the same for all threads. Pointers are owned by the program or by the caller of run().
struct Step {
  const CoreShape* shape;
  const CoreBatch* batch;
  const int32_t* positions;  // [num_tokens]
  const int32_t* sequence;   // [num_tokens] number of each row's sequence
  const int32_t* first_row;  // [num_sequences] row of its first token
  const QueryTile* tiles;    // [num_tiles]
  int32_t num_tiles;
  const int32_t* adapted;            // rows with an adapter, those of one adapter together
  const AdapterTile* adapter_tiles;  // [num_adapter_tiles]
  int32_t num_adapter_tiles;
  int32_t threads;
  int32_t nodes;
  int32_t longest;  // positions of the longest sequence, this step's included
  float* workspace;
  std::byte* shared;  // scratch of the running op, shared by all threads, aligned to 64
  KvPool kv;
  CoreExchange* exchange;         // with other ranks; null: the program has not joined any
  const LinearOp* fed = nullptr;  // the next op, if this op also prepares its rows (converted activations)
  bool ready = false;             // the previous op has prepared this op's rows

  [[gnu::always_inline]] int64_t rows(const CoreValue& value) const {
    return value.rows == CORE_ROWS_TOKENS ? batch->num_tokens : batch->num_logits;
  }
  [[gnu::always_inline]] float* row(const CoreValue& value, int64_t row) const {
    return workspace + value.offset + row * value.width;
  }
};

// State of one thread.
struct Thread {
  int32_t number;
  int32_t node;
  std::byte* scratch;  // aligned to 64; persists between jobs of one phase
  bool begun = false;  // this thread has run jobs of this phase before
};

// ---- kernels ----

// A part of an op. Its jobs may run in any order, on any thread, and write nothing that another job of it reads.
struct Phase {
  // Number of jobs; 0 skips the phase.
  int64_t (*jobs)(const void* op, const Step& step);
  // Run jobs first ... last - 1.
  void (*run)(const void* op, const Step& step, int64_t first, int64_t last, Thread& thread);
  // Used instead of `jobs` if set: number of jobs for the threads of a memory node; if 0 for node 0, 0 for all.
  int64_t (*node_jobs)(const void* op, const Step& step, int32_t node) = nullptr;
};

// The implementation of an op: phases in sequence; all jobs of one end before the next begins.
struct Kernel {
  static constexpr int kPhases = 8;
  Phase phases[kPhases];
  // Return the bytes of Step::shared and of Thread::scratch for the largest batch; null: none.
  int64_t (*shared_bytes)(const void* op, const CoreShape& shape, int32_t threads);
  int64_t (*scratch_bytes)(const void* op, const CoreShape& shape, int32_t threads);
  // Return the most bytes that a rank gives to an exchange; null: there is none.
  int64_t (*part_bytes)(const void* op, const CoreShape& shape) = nullptr;
};

// One kernel per op, which takes the op as recorded.
struct Kernels {
#define CORE_OP_KERNEL(op, Args) Kernel op;
  CORE_PROGRAM_OPS(CORE_OP_KERNEL)
#undef CORE_OP_KERNEL
};

}  // namespace core
