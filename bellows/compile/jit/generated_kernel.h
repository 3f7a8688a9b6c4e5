#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/compile/codegen/codegen.h"
#include "bellows/compile/jit/kernel_library.h"
#include "bellows/graph/program/program.h"

namespace bellows::compile_detail {

/// Compiled functions by their symbols.
using Libraries = std::unordered_map<std::string, std::shared_ptr<const Library>>;

/// Runs generated functions on several threads.
class GeneratedKernel : public graph::Kernel {
 public:
  /// Throws: std::out_of_range if there is no library for one of the functions
  GeneratedKernel(std::string name, const KernelCode& code, const Libraries& libraries);

  std::string name() const override { return name_; }
  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue> numbers,
           void* scratch) const override;
  size_t scratch_bytes() const override { return scratch_bytes_; }
  bool may_run_beside() const override { return true; }

 private:
  using Call = void (*)(char* const*, char* const*, const double*, char*, const int64_t*, const double*, int64_t,
                        int64_t);
  struct Function {
    std::shared_ptr<const Library> library;
    Call call;
    int64_t units, grain;
    std::vector<int64_t> sizes;
    std::vector<double> constants;

    void run(char* const* operands, char* const* results, const double* numbers, char* scratch, int64_t begin,
             int64_t end) const {
      call(operands, results, numbers, scratch, sizes.data(), constants.data(), begin, end);
    }
  };
  std::string name_;
  std::vector<Function> functions_;
  std::vector<int64_t> operand_offsets_, result_offsets_;  ///< see KernelCode
  size_t scratch_bytes_;
};

}  // namespace bellows::compile_detail
