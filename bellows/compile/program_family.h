#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/compile/jit/program_kernels.h"

namespace bellows::compile_detail {

/// Programs with the same operators on the same values form a family, for example programs for batches of different
/// lengths. They share generated functions.
/// Threads: not thread-safe
class ProgramFamilies {
 public:
  /// Returns the kernels of the family to which a recorded program belongs.
  /// Params: report – receives a line that states in which input sizes the program differs from the first of its family
  KernelFamily& of(const graph::Program& program, std::string& report);

 private:
  static constexpr size_t most_kept = 64;

  struct Family {
    KernelFamily kernels;
    std::vector<graph::Geometry> inputs;  ///< of the first program
    bool is_new = true;
  };
  std::unordered_map<size_t, Family> all_;  ///< by a hash of the operators and values
};

}  // namespace bellows::compile_detail
