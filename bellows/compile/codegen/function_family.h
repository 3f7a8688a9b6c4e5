#pragma once

#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/compile/codegen/codegen.h"

namespace bellows::compile_detail {

/// The generated functions of programs with the same operators. Where functions of two programs differ only in sizes or
/// constants, these numbers become arguments, so that later programs with other sizes need no compiler.
/// Numerics: results are bit-identical whether numbers are literals or arguments
class FunctionFamily {
 public:
  /// Adapts the functions of a new program. The first program of a family keeps literals, which are faster.
  /// Params: kernels – all kernels of the program, in order
  void adapt(const std::vector<KernelCode*>& kernels);

 private:
  struct Known {
    std::vector<int64_t> sizes;  ///< in the first program, like `constants`
    std::vector<std::string> constants;
    std::vector<bool> size_varies, constant_varies;
  };
  static void use(const Known& known, KernelCode::Function& function);

  /// By skeleton. A program can contain a skeleton several times; its n-th occurrence corresponds to the n-th
  /// occurrence in other programs.
  std::unordered_map<std::string, std::deque<Known>> known_;
};

}  // namespace bellows::compile_detail
