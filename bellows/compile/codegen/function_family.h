#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "bellows/compile/codegen/codegen.h"

namespace bellows::compile_detail {

/// The generated functions of programs with the same operators. The first program has functions with literal numbers,
/// which are fastest. For programs with other numbers, functions are general: all their sizes and constants are
/// arguments. The first of these programs gets the general versions of all functions, also of those with unchanged
/// numbers, so that later programs with other sizes need no compiler.
/// Numerics: results are bit-identical whether numbers are literals or arguments
class FunctionFamily {
 public:
  /// Adapts the functions of a new program.
  /// Params:  kernels – all kernels of the program, in order
  /// Returns: further functions to compile, which later programs will use
  std::vector<KernelCode::Function> adapt(const std::vector<KernelCode*>& kernels);

 private:
  bool is_new_ = true;
  std::unordered_set<std::string> literal_;  ///< symbols of the first program's functions
  std::unordered_set<std::string> general_;  ///< symbols of general functions
};

}  // namespace bellows::compile_detail
