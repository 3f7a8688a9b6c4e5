#pragma once

#include <climits>
#include <cstdint>
#include <vector>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// Where each value of a program is while it runs. What an update writes is where it was before, so values fall into blocks of memory.
/// The blocks that kernels and products write, and their scratch memory, share one arena: two have the same bytes only if they are never needed
/// at the same time.
struct MemoryPlan {
  enum class Home : uint8_t {
    input,      ///< the buffer of an input
    constant,   ///< a tensor of the program
    allocated,  ///< libtorch's own: an operator makes it, and hands it over
    output,     ///< a new buffer, that the program's caller gets
    lent,       ///< the same, in the arena: the caller is done with it before the next run
    arena,
  };
  static constexpr int end = INT_MAX;  ///< after the last instruction

  struct Block {
    Home home = Home::allocated;
    int index = -1;           ///< which input or constant
    int copied = -1;          ///< which block it is a copy of, made before its first instruction writes it
    int first = 0, last = 0;  ///< instructions that need it, both included
    size_t nbytes = 0;
    size_t offset = 0;  ///< in the arena, of what is there
  };

  std::vector<Block> blocks{};
  std::vector<int> block_of{};           ///< of each value; -1: it is nowhere made
  std::vector<size_t> scratch_offset{};  ///< of each instruction, in the arena
  size_t arena_bytes = 0;
  size_t least_bytes = 0;  ///< no arena could be smaller: the most that is needed at one time

  /// Params: lent – of each output: it may be lent out of the arena; empty: none
  static MemoryPlan of(const Program& program, const std::vector<bool>& lent = {});
};

/// For tests of what lives how long. Programs prepared while it is on fill each block that they place with NaN before its first
/// instruction and after its last one, and scratch memory before each use: a value that is read too early or too late is seen.
void poison_arenas(bool on);

}  // namespace bellows::graph
