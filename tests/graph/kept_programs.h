#pragma once

#include "tests/graph/support.h"

namespace bellows::graph::testing {

/// Keeps the programs that it is asked for, as they come.
class KeepingBackend : public RunnerBackend {
 public:
  std::shared_ptr<Executable> prepare(graph::Program program, std::span<const c10::Storage> inputs) override {
    programs.push_back(program);
    return RunnerBackend::prepare(std::move(program), inputs);
  }
  std::vector<graph::Program> programs;
};

/// What becomes of a function that is one piece of a recording.
inline graph::Program program_of(const std::function<void()>& function) {
  const auto backend = std::make_shared<KeepingBackend>();
  graph::Region region({.backend = backend});
  for (int call = 0; call < 3; ++call) region.run(function);
  EXPECT_GE(backend->programs.size(), 1u);
  return backend->programs.empty() ? graph::Program{} : backend->programs.back();
}

/// A kernel made of a function on numbers of fp32: of all operands, `count` results each.
class FloatKernel : public Kernel {
 public:
  using Function = std::function<void(std::span<float* const> operands, std::span<float* const> results)>;
  explicit FloatKernel(Function function, size_t scratch = 0) : function_(std::move(function)), scratch_(scratch) {}

  std::string name() const override { return "a function"; }
  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void* scratch) const override {
    if (scratch_ > 0) std::memset(scratch, 0x7f, scratch_);
    const auto floats = [](std::span<void* const> all) {
      return std::span(reinterpret_cast<float* const*>(all.data()), all.size());
    };
    function_(floats(operands), floats(results));
  }
  size_t scratch_bytes() const override { return scratch_; }

 private:
  Function function_;
  size_t scratch_;
};

/// result = operand + 1
inline std::shared_ptr<const Kernel> add_one(int64_t count, size_t scratch = 0) {
  return std::make_shared<FloatKernel>(
      [count](std::span<float* const> operands, std::span<float* const> results) {
        for (int64_t i = 0; i < count; ++i) results[0][i] = operands[0][i] + 1;
      },
      scratch);
}

inline std::vector<c10::Storage> storages(const Tensors& tensors) {
  std::vector<c10::Storage> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.storage());
  return result;
}

}  // namespace bellows::graph::testing
