// A recorded step: ops with their kernels, and the memory that they work in.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "core_program.h"
#include "cpu/cpu.h"
#include "cpu/exchange.h"
#include "cpu/kernels.h"
#include "cpu/memory.h"

namespace core {

// Return the recorded form of an op: its struct, with copies of any CoreWeight that it points to.
template <typename Args>
Args recorded(const Args& op) {
  return op;
}
EmbedOp recorded(const CoreEmbed& op);
LinearOp recorded(const CoreLinear& op);

template <typename First, typename... Args>
using AnyOf = std::variant<decltype(recorded(std::declval<Args>()))...>;
#define CORE_OP_TYPE(op, Args) , Args
using Op = AnyOf<void CORE_PROGRAM_OPS(CORE_OP_TYPE)>;
#undef CORE_OP_TYPE

struct RecordedOp {
  Op op;
  const Kernel* kernel;
  bool feeds = false;  // the next op is a linear op on the rows that this one writes

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
  CoreStatus join(CoreExchange* exchange);
  bool lost() const;  // another rank is gone
  CoreStatus run(const CoreBatch& batch);

  CoreCpu& cpu;
  const CoreShape shape;
  std::vector<core::RecordedOp> ops;
  int64_t shared_bytes = 0;
  int64_t scratch_bytes = 0;  // of one thread
  int64_t part_bytes = 0;     // of an exchange; 0: there are none
  CoreExchange* exchange = nullptr;
  core::KvPool kv;
  core::Memory memory;  // workspace, tables of the batch, shared scratch, scratch of each thread

 private:
  core::Step step_of(const CoreBatch& batch);
};
