#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/compile/codegen/codegen.h"
#include "bellows/compile/jit/kernel_cache.h"
#include "bellows/graph/program/program.h"

namespace bellows::compile_detail {

/// Runs generated functions on several threads.
class GeneratedKernel : public graph::Kernel {
 public:
  /// Throws: c10::Error if the library lacks one of the functions
  GeneratedKernel(std::string name, const KernelCode& code, std::shared_ptr<const Library> library);

  std::string name() const override { return name_; }
  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue> numbers,
           void* scratch) const override;
  size_t scratch_bytes() const override { return scratch_bytes_; }
  bool may_run_beside() const override { return true; }

 private:
  using Call = void (*)(char* const*, char* const*, const double*, char*, int64_t, int64_t);
  struct Function {
    Call call;
    int64_t units, grain;
  };
  std::string name_;
  std::shared_ptr<const Library> library_;
  std::vector<Function> functions_;
  size_t scratch_bytes_;
};

}  // namespace bellows::compile_detail
