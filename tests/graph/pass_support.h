#pragma once

#include <set>

#include "bellows/graph/passes/pass.h"
#include "bellows/graph/recording/frozen.h"
#include "tests/graph/expression_kernel.h"
#include "tests/graph/support.h"

namespace bellows::graph::testing {

/// Runs programs as passes leave them.
struct PassBackend : Backend {
  enum class Kernels { none, single, groups };
  explicit PassBackend(PassOptions given = {}, Kernels which = Kernels::none)
      : options(std::move(given)), kernels(which) {
    options.check = true;
  }

  PassOptions options;
  Kernels kernels;
  std::vector<Pass> list = passes();
  std::vector<PassReport> reports{};
  std::vector<graph::Program> programs{};  ///< as they run
  std::set<std::string> evaluated{};       ///< names of operators that expressions stood for
  int made = 0;

  Tensors frozen{};  ///< keep their values

  std::shared_ptr<Executable> prepare(graph::Program program, std::span<const c10::Storage> inputs) override {
    functionalize(program);
    program.check();
    Remaining remaining;
    if (!frozen.empty()) {
      remaining = freeze_inputs(program, inputs, are_frozen(inputs, frozen));
      program.check();
    }
    if (kernels == Kernels::single) {
      for (Instruction& one : program.instructions) put_single(one);
    } else {
      reports.push_back(run_passes(program, options, list));
      if (kernels == Kernels::groups) put_groups(program);
    }
    programs.push_back(program);
    if (frozen.empty()) return std::make_shared<ProgramRunner>(std::move(program));
    return std::make_shared<FrozenRunner>(std::move(program), remaining);
  }
  std::string to_text() const override {
    std::string all;
    for (const PassReport& report : reports) all += report.to_text();
    return all;
  }
  int64_t fired(std::string_view pass) const {
    int64_t times = 0;
    for (const PassReport& report : reports) times += report.fired(pass);
    return times;
  }

 private:
  void put_single(Instruction& one) {
    const auto expression = expression_of(one);
    if (!expression) return;
    std::vector<int> numbers;
    int count = 0;
    for (const auto& argument : one.arguments) numbers.push_back(argument.number >= 0 ? count++ : -1);
    one.kernel = std::make_shared<ExpressionKernel>(*expression, numbers);
    evaluated.insert(one.op->name);
    ++made;
  }

  void put_groups(graph::Program& program) {
    for (Instruction& one : program.instructions) {
      if (!one.group) continue;
      one.kernel = std::make_shared<GroupKernel>(*one.group);
      ++made;
    }
  }
};

/// Calls a program in a region whose programs go through passes; what it leaves is the same, or as close as `tolerance`.
inline std::shared_ptr<PassBackend> expect_passed(const std::function<Program()>& make, PassBackend backend,
                                                  double tolerance = 0, int calls = 6) {
  const auto shared = std::make_shared<PassBackend>(std::move(backend));
  const Tensors plain = outcome(make, calls, nullptr);
  RegionOptions options;
  options.backend = shared;
  Region region(options);
  const Tensors passed = outcome(make, calls, &region);
  EXPECT_EQ(plain.size(), passed.size());
  for (size_t i = 0; i < std::min(plain.size(), passed.size()); ++i) {
    if (!plain[i].defined()) continue;
    const bool alike = tolerance == 0 ? same_bits(plain[i], passed[i])
                                      : at::allclose(plain[i].to(at::kDouble), passed[i].to(at::kDouble), tolerance,
                                                     tolerance, /*equal_nan=*/true);
    EXPECT_TRUE(alike) << "tensor " << i << " of " << plain.size() << "\n"
                       << (plain[i].to(at::kDouble) - passed[i].to(at::kDouble)).abs().max() << "\n"
                       << shared->to_text();
  }
  return shared;
}

/// A function of tensors without gradients.
inline std::function<Program()> pure(const std::function<Tensors(const Tensors&)>& body,
                                     const std::vector<std::vector<int64_t>>& sizes) {
  return [=] {
    Tensors inputs;
    for (const auto& size : sizes) inputs.push_back(torch::randn(size));
    return Program{[=](int) {
                     const at::NoGradGuard no_grad;
                     return body(inputs);
                   },
                   [=] { return inputs; }};
  };
}

}  // namespace bellows::graph::testing
