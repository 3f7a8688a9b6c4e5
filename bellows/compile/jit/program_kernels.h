#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "bellows/compile/codegen/function_family.h"
#include "bellows/compile/jit/generated_kernel.h"
#include "bellows/compile/jit/kernel_library.h"
#include "bellows/graph/passes/expression.h"

namespace bellows::compile_detail {

/// Statistics of code generation for a program.
struct KernelReport {
  int64_t kernels = 0;    ///< instructions with a generated kernel
  int64_t functions = 0;  ///< different functions in the generated code
  int64_t compiled = 0;   ///< functions that no earlier program had
  int64_t left = 0;       ///< groups without a kernel, which libtorch's operators compute
  double compile_s = 0;
  std::string to_text() const;
};

/// The kernels that programs with the same operators share.
struct KernelFamily {
  FunctionFamily functions{};
  Libraries libraries{};
};

/// Returns whether generated code is likely to be fast. It needs enough units of work for all threads, and mostly
/// sequential memory accesses.
bool is_worth_generating(const graph::Expression& expression);

/// Generates kernels for groups and for supported individual operators. Each source contains many functions, and
/// sources are compiled in parallel. If a source cannot be compiled, libtorch's operators compute its groups. The
/// reason is logged once per process.
/// Params:  family – kernels of earlier programs with the same operators, which are used and extended
/// Threads: thread-safe
/// Throws:  c10::Error if `stop` is requested
KernelReport generate_kernels(graph::Program& program, KernelProvider& provider, const std::stop_token& stop = {},
                              KernelFamily* family = nullptr);

}  // namespace bellows::compile_detail
