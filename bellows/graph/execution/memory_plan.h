#pragma once

#include <climits>
#include <cstdint>
#include <vector>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// The memory of each value of a program. A value that an update computes uses the memory of the value that the update
/// overwrites. All values that share memory form a block. Scratch memory and the blocks that kernels and matrix
/// multiplications write share one arena. Two blocks overlap in the arena only if they are never needed at the same
/// time.
struct MemoryPlan {
  enum class Home : uint8_t {
    input,      ///< the buffer of an input
    constant,   ///< a tensor of the program
    allocated,  ///< allocated and returned by an operator of libtorch
    output,     ///< a new buffer that is returned to the caller
    lent,       ///< like `output`, but in the arena: the caller releases it before the next run
    arena,
  };
  static constexpr int end = INT_MAX;  ///< position after the last instruction

  struct Block {
    Home home = Home::allocated;
    int index = -1;   ///< index of the input or constant
    int copied = -1;  ///< index of the block that is copied to this block before its first instruction writes it
    int first = 0, last = 0;  ///< first and last instruction that need the block
    size_t nbytes = 0;
    size_t offset = 0;  ///< in the arena
  };

  std::vector<Block> blocks{};
  std::vector<int> block_of{};           ///< for each value; -1 if the value is never computed
  std::vector<size_t> scratch_offset{};  ///< for each instruction, in the arena
  size_t arena_bytes = 0;
  size_t least_bytes = 0;  ///< lower bound of `arena_bytes`: largest number of bytes that are needed at the same time

  /// Creates a plan.
  /// Params: lent – for each output, whether it may be lent from the arena. If empty, no output is lent
  static MemoryPlan of(const Program& program, const std::vector<bool>& lent = {});
  /// Creates a plan in which each operator allocates its results. The program has no kernels and no constants.
  static MemoryPlan without_arena(const Program& program);
};

/// Turns a test mode for lifetimes on or off. In this mode, new programs fill each block of the arena with NaN before
/// the first and after the last instruction that needs it. They also fill scratch memory with NaN before each use. A
/// read that is too early or too late then returns NaN.
void poison_arenas(bool on);

}  // namespace bellows::graph
