#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "bellows/compile/jit/kernel_cache.h"
#include "bellows/graph/passes/expression.h"

namespace bellows::compile_detail {

/// The result of code generation for a program.
struct KernelReport {
  int64_t kernels = 0;    ///< instructions with a generated kernel
  int64_t functions = 0;  ///< number of different functions
  int64_t left = 0;       ///< groups that run by libtorch's operators
  double compile_s = 0;
  std::string to_text() const;
};

/// True if generated code is likely to be fast: there are enough units for all threads, and memory is mostly read in
/// order.
bool is_worth_generating(const graph::Expression& expression);

/// Generates kernels for groups and supported single operators. Each source contains many functions; sources are
/// compiled in parallel. If a source cannot be compiled, its groups run by operators; the reason is logged once per
/// process.
/// Threads: safe
/// Throws:  c10::Error if it is stopped
KernelReport generate_kernels(graph::Program& program, KernelCache& cache, const std::stop_token& stop = {});

}  // namespace bellows::compile_detail
