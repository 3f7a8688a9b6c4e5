#pragma once

#include <c10/core/Storage.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bellows/graph/execution/arena_pool.h"
#include "bellows/graph/execution/memory_plan.h"

namespace bellows::graph::detail {

/// The memory that one output of a program was handed out in last, and whether somebody holds it still.
/// Threads: one program's; what was handed out may be let go of on any
class HandedOut {
 public:
  /// Memory of its own.
  /// Params: keeps – it has the same memory each time, unless that is still held
  c10::Storage fresh(size_t nbytes, c10::Device device, bool keeps, const std::shared_ptr<ArenaPool>& pool);
  /// Memory that stays while `owner` lives.
  c10::Storage over(void* data, size_t nbytes, c10::Device device, std::shared_ptr<void> owner,
                    const std::shared_ptr<ArenaPool>& pool);
  /// It was let go of after the run `last` and before any other one, as the pool counts.
  bool came_back_after(uint64_t last) const { return returned_ && *returned_ == last; }

 private:
  std::shared_ptr<c10::DataPtr> kept_;
  std::shared_ptr<std::atomic<uint64_t>> returned_;  ///< how many runs there had been; 0: it is held
};

/// The blocks of a memory plan in one run after the other, and the tensors through which operators see them. The tensors are made
/// once; what changes is the storage below.
class RunnerMemory {
 public:
  RunnerMemory(const Program& program, const MemoryPlan& plan);

  /// A tensor that sees a value as an operand says; an undefined one where there is none.
  at::Tensor seen(const Operand& operand);

  void begin(std::span<c10::Storage> inputs);
  /// What the instruction needs that is not there yet: new outputs, copies of what must not be written.
  void before(int instruction);
  /// Lets go of what no later instruction needs.
  void after(int instruction);
  /// Hands over the outputs, and writes back what is not in its input yet.
  void finish(std::span<c10::Storage> outputs);
  /// In the place of finish() where an instruction failed: hands over the outputs that were whole before it.
  void finish_before(int instruction, std::span<c10::Storage> outputs);
  /// Lets go of everything that is not kept from one run to the next.
  void clear();
  /// Of each output: whether it can be lent out of the arena, as far as the last run tells. Everybody had let go of it before any
  /// program ran again.
  std::vector<bool> came_back() const;

  /// What an operator made becomes the value.
  void put(ValueId value, const c10::Storage& storage) { bind(blocks_[plan_.block_of[value]], storage); }
  const c10::Storage& storage(ValueId value) const { return blocks_[plan_.block_of[value]].storage; }
  void* data(ValueId value) const;
  void* scratch(int instruction) const { return arena_ + plan_.scratch_offset[instruction]; }

 private:
  struct Block {
    c10::Storage storage{}, nothing{};  ///< the latter between its uses, since a tensor must have one
    std::vector<Geometry> geometries{};
    std::vector<at::Tensor> tensors{};
    bool written = false;
    HandedOut handed_out{};  ///< of an output
  };

  enum class HandOut : uint8_t { stays, given, copied, written_back };

  void decide_hand_outs();
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
  std::vector<std::vector<int>> begins_, ends_;  ///< blocks, by instruction
  std::vector<HandOut> hand_outs_;               ///< by output
  std::vector<int> made_by_;                     ///< which instruction, by output
  std::span<c10::Storage> inputs_;
  std::shared_ptr<ArenaPool> pool_;     ///< null where there is no arena
  std::shared_ptr<ArenaLease> leased_;  ///< during a run
  uint64_t last_run_ = 0;               ///< as the pool counts; those inside of it included
  char* arena_ = nullptr;               ///< where the tensors see it: in most runs it is the same
};

}  // namespace bellows::graph::detail
