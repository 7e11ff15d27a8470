// A recorded step: ops with the kernels that run them, and the memory that they work in.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "core_program.h"
#include "cpu/cpu.h"
#include "cpu/kernels.h"
#include "cpu/memory.h"

namespace core {

using Op = std::variant<EmbedOp, CoreNorm, LinearOp, CoreRopeAppend, CoreAttention, CoreGated, CoreSelect, CoreSample>;

struct RecordedOp {
  Op op;
  const Kernel* kernel;
  bool feeds = false;  // the next op is a product of what this one writes, row by row

  const void* data() const {
    return std::visit([](const auto& op) -> const void* { return &op; }, op);
  }
};

}  // namespace core

struct CoreProgram {
  CoreProgram(CoreCpu& cpu, const CoreShape& shape);

  void append(const core::Op& op, const core::Kernel& kernel);
  int64_t workspace_bytes() const;
  CoreStatus bind(void* pool, int64_t num_blocks);
  CoreStatus run(const CoreBatch& batch);

  CoreCpu& cpu;
  const CoreShape shape;
  std::vector<core::RecordedOp> ops;
  int64_t shared_bytes = 0;
  int64_t room_bytes = 0;  // of one thread
  core::KvPool kv;
  core::Memory memory;  // workspace, tables of the batch, shared room, room of each thread

 private:
  core::Step step_of(const CoreBatch& batch);
};
