#pragma once

#include <climits>
#include <cstdint>
#include <vector>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// The memory of each value of a program. An update stays in the memory of the value before it, so values form blocks.
/// Blocks written by kernels and matrix multiplications, and scratch memory, share one arena. Two of them overlap only
/// if they are never needed at the same time.
struct MemoryPlan {
  enum class Home : uint8_t {
    input,      ///< the buffer of an input
    constant,   ///< a tensor of the program
    allocated,  ///< allocated and returned by an operator of libtorch
    output,     ///< a new buffer, returned to the caller
    lent,       ///< like `output`, but in the arena: the caller releases it before the next run
    arena,
  };
  static constexpr int end = INT_MAX;  ///< after the last instruction

  struct Block {
    Home home = Home::allocated;
    int index = -1;   ///< of the input or constant
    int copied = -1;  ///< index of the block of which this is a copy; made before its first instruction writes it
    int first = 0, last = 0;  ///< first and last instruction that need it
    size_t nbytes = 0;
    size_t offset = 0;  ///< in the arena
  };

  std::vector<Block> blocks{};
  std::vector<int> block_of{};           ///< for each value; -1: it is never made
  std::vector<size_t> scratch_offset{};  ///< for each instruction, in the arena
  size_t arena_bytes = 0;
  size_t least_bytes = 0;  ///< lower bound of `arena_bytes`: the largest sum that is needed at one time

  /// Params: lent – for each output, whether it may be lent from the arena; empty: none
  static MemoryPlan of(const Program& program, const std::vector<bool>& lent = {});
};

/// For tests of lifetimes. While it is on, newly prepared programs fill each arena block with NaN before its first and
/// after its last instruction, and scratch memory before each use. Reads that come too early or too late then become
/// visible.
void poison_arenas(bool on);

}  // namespace bellows::graph
