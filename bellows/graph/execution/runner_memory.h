#pragma once

#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bellows/graph/execution/arena_pool.h"
#include "bellows/graph/execution/memory_plan.h"

namespace bellows::graph::detail {

/// The most recent buffer of one program output. It records whether the buffer is still referenced.
/// Threads: belongs to one program. The returned storages may be released on any thread
class OutputBuffer {
 public:
  /// Returns a storage with separate memory.
  /// Params: keeps – reuse the same memory in each call unless it is still referenced
  c10::Storage fresh(size_t nbytes, c10::Device device, bool keeps, const std::shared_ptr<ArenaPool>& pool);
  /// Returns a storage over memory that is valid while `owner` lives.
  c10::Storage over(void* data, size_t nbytes, c10::Device device, std::shared_ptr<void> owner,
                    const std::shared_ptr<ArenaPool>& pool);
  /// Returns whether the buffer was released after the run `last` and before any later run. The pool counts the runs.
  bool came_back_after(uint64_t last) const { return returned_ && *returned_ == last; }

 private:
  std::shared_ptr<c10::DataPtr> kept_;
  std::shared_ptr<std::atomic<uint64_t>> returned_;  ///< number of runs at its release; 0 if it is still referenced
};

/// The blocks of a memory plan during the runs, and the tensors through which operators access them. The tensors are
/// created once, and only their storages change.
class RunnerMemory {
 public:
  /// Params: in_order – see ProgramRunner::in_order()
  RunnerMemory(const Program& program, const MemoryPlan& plan, bool in_order);

  /// Returns a tensor with a value and a geometry. If there is no value, the tensor is undefined.
  /// Params: geometry – of an operand of the program; referenced
  at::Tensor seen(ValueId value, const Geometry& geometry);

  void begin(std::span<c10::Storage> inputs);
  /// Prepares the memory for an instruction: new outputs, and copies of values that must not be overwritten.
  void before(int instruction);
  /// Releases values that no later instruction needs.
  void after(int instruction);
  /// Passes the outputs to the caller. Values that belong to inputs are copied to the buffers of these inputs, unless
  /// they are already in these buffers.
  void finish(std::span<c10::Storage> outputs);
  /// Call this function instead of finish() if an instruction failed. It passes to the caller only the outputs that
  /// were complete before this instruction.
  void finish_before(int instruction, std::span<c10::Storage> outputs);
  /// Releases all memory that is not reused by the next run.
  void clear();
  /// Returns for each output whether it can be lent from the arena. This is the case if the output of the last run was
  /// released before any program ran again.
  std::vector<bool> came_back() const;

  /// Sets a value to the result of an operator.
  void put(ValueId value, const c10::Storage& storage) { bind(blocks_[plan_.block_of[value]], storage); }
  const c10::Storage& storage(ValueId value) const { return blocks_[plan_.block_of[value]].storage; }
  void* data(ValueId value) const;
  void* scratch(int instruction) const { return arena_ + plan_.scratch_offset[instruction]; }

 private:
  struct Seen {
    const Geometry* geometry = nullptr;
    at::Tensor tensor{};
  };
  struct Block {
    c10::Storage storage{}, nothing{};  ///< `nothing` is set between uses, because a tensor must have a storage
    c10::SmallVector<Seen, 2> seen{};
    bool written = false;
    OutputBuffer output_buffer{};  ///< for outputs
  };

  enum class HandOut : uint8_t { stays, given, copied, written_back };

  c10::Storage nothing_on(c10::Device device) const;
  void sort_blocks();
  void decide_hand_outs(bool in_order);
  void hand_out(size_t output, std::span<c10::Storage> outputs);
  bool is_written_back(int input) const;
  void bind(Block& block, const c10::Storage& storage);
  void let_go(Block& block);
  void poison_block(int block);
  void take_arena();
  c10::Storage fresh_output(int block);

  const Program& program_;
  const MemoryPlan& plan_;
  const bool poisoned_;
  std::vector<Block> blocks_;
  /// Pairs of an instruction and a block that it needs first or last, in order of the instructions. Each instruction has
  /// its range of pairs.
  struct Events {
    std::vector<std::pair<int, int>> all{};
    std::vector<size_t> first{};

    void sort(size_t instructions);
    std::span<const std::pair<int, int>> of(int instruction) const {
      return std::span(all).subspan(first[instruction], first[instruction + 1] - first[instruction]);
    }
  };
  Events begins_, ends_;
  std::vector<HandOut> hand_outs_;  ///< for each output
  std::vector<int> made_by_;        ///< for each output: the instruction after which it is complete
  std::span<c10::Storage> inputs_;
  std::shared_ptr<ArenaPool> pool_;     ///< null if there is no arena
  std::shared_ptr<ArenaLease> leased_;  ///< set during a run
  uint64_t last_run_ = 0;               ///< as counted by the pool, including nested runs
  char* arena_ = nullptr;               ///< the address in the tensors; in most runs it does not change
};

}  // namespace bellows::graph::detail
