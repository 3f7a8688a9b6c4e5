#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/graph/execution/program_runner.h"
#include "bellows/graph/passes/functionalize.h"
#include "bellows/graph/passes/pass.h"
#include "bellows/graph/recording/region.h"

namespace bellows::graph::testing {

using Tensors = std::vector<at::Tensor>;

/// A program that includes this runs all of its tests so.
[[maybe_unused]] inline const bool arenas_are_poisoned = (poison_arenas(true), true);

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.sizes() != b.sizes() || a.strides() != b.strides() || a.dtype() != b.dtype()) return false;
  const at::Tensor x = a.detach().contiguous(), y = b.detach().contiguous();  // bits, so that NaNs may be equal
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

/// The first tensor that differs; -1: none.
inline int first_difference(const Tensors& a, const Tensors& b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!same_bits(a[i], b[i])) return static_cast<int>(i);
  }
  return a.size() == b.size() ? -1 : static_cast<int>(std::min(a.size(), b.size()));
}

/// Whether the environment selects this way to run programs: without passes ("programs"), with exact passes ("passes"), or with exact
/// passes from the first call on ("deferred").
inline bool runs_programs_as(std::string_view way) {
  const char* const asked = std::getenv("BELLOWS_TEST_PROGRAMS");
  return asked && asked == way;
}

/// Runs programs as they come, but for pure operators.
class RunnerBackend : public Backend {
 public:
  std::shared_ptr<Executable> prepare(graph::Program program, std::span<const c10::Storage> inputs) override {
    EXPECT_EQ(inputs.size(), program.inputs.size());
    program.check();
    functionalize(program);
    if (runs_programs_as("passes") || runs_programs_as("deferred")) run_passes(program, {.exact = true, .check = true});
    return std::make_shared<ProgramRunner>(std::move(program));
  }
  std::string to_text() const override { return "programs run as they come"; }
};

/// As the environment asks, a region whose followed operators run as programs, or in order: all tests are run in both ways.
class Region : public graph::Region {
 public:
  explicit Region(RegionOptions options = {}) : graph::Region(chosen(options)) {}
  /// The calls whose operators are run when they are called: the first, or none.
  static int eager_calls() { return runs_programs_as("deferred") ? 0 : 1; }
  static bool runs_programs() { return std::getenv("BELLOWS_TEST_PROGRAMS"); }

 private:
  static RegionOptions& chosen(RegionOptions& options) {
    if (runs_programs() && !options.backend) options.backend = std::make_shared<RunnerBackend>();
    options.record_deferred = eager_calls() == 0;
    return options;
  }
};

/// Something that is called again and again, and what it leaves behind.
struct Program {
  std::function<Tensors(int call)> body;  ///< results of one call, seen after its end
  std::function<Tensors()> state = [] { return Tensors{}; };
};

/// Calls a program that `make` makes from one seed, plainly or in a region. Everything that it leaves is copied.
/// Params: places – where each tensor comes from, for messages
inline Tensors outcome(const std::function<Program()>& make, int calls, Region* region,
                       std::vector<std::string>* places = nullptr) {
  torch::manual_seed(5);
  const Program program = make();
  torch::manual_seed(7);
  Tensors all;
  const auto keep = [&](const Tensors& some, const std::string& place) {
    for (size_t i = 0; i < some.size(); ++i) {
      all.push_back(some[i].defined() ? some[i].detach().clone() : some[i]);
      if (places) places->push_back(c10::str(place, ", tensor ", i, " of ", some.size(), "\n", all.back()));
    }
  };
  for (int call = 0; call < calls; ++call) {
    Tensors results;
    const auto body = [&] { results = program.body(call); };
    region ? region->run(body) : body();
    keep(results, c10::str("call ", call));
  }
  keep(program.state(), "state");
  keep({at::rand({3})}, "the generator");  // is where it would be
  return all;
}

/// The program leaves the same bits in a region as without one. Returns what the region did.
inline Explanation expect_same(const std::function<Program()>& make, int calls = 10,
                               const RegionOptions& options = {}) {
  const Tensors plain = outcome(make, calls, nullptr);
  Region region(options);
  const Tensors followed = outcome(make, calls, &region);
  EXPECT_EQ(first_difference(plain, followed), -1) << region.explain().to_text();
  const bool expected = Region::runs_programs() && region.explain().followed_calls > 0;
  EXPECT_GE(region.explain().program_runs > 0, expected) << region.explain().to_text();
  return region.explain();
}

/// Parameters, gradients and buffers.
inline Tensors state_of(const torch::nn::Module& module) {
  Tensors all;
  for (const auto& parameter : module.parameters()) {
    all.push_back(parameter);
    all.push_back(parameter.grad());
  }
  for (const auto& buffer : module.buffers()) all.push_back(buffer);
  return all;
}

/// What an exception says; "" if there is none.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace bellows::graph::testing
