#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "bellows/compile/jit/kernel_cache.h"
#include "bellows/graph/passes/expression.h"

namespace bellows::compile_detail {

/// What code was generated for a program.
struct KernelReport {
  int64_t kernels = 0;    ///< instructions that have one
  int64_t functions = 0;  ///< that differ
  int64_t left = 0;       ///< groups that libtorch's operators run
  double compile_s = 0;
  std::string to_text() const;
};

/// Whether code for it would be good: there are enough parts for threads to share, and memory is mostly read in order.
bool is_worth_generating(const graph::Expression& expression);

/// Gives groups, and single operators that can be written, a kernel. Sources hold many functions and are compiled at the same time. What
/// cannot be compiled is left to operators; why not is logged once a process.
/// Threads: any
/// Throws:  c10::Error – it was stopped
KernelReport generate_kernels(graph::Program& program, KernelCache& cache, const std::stop_token& stop = {});

}  // namespace bellows::compile_detail
