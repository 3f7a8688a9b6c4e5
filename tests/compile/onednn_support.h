#pragma once

#include <gtest/gtest.h>

#include <torch/torch.h>

#include <memory>
#include <mutex>
#include <vector>

#include "bellows/compile/onednn/onednn.h"
#include "bellows/graph/execution/memory_plan.h"
#include "bellows/graph/passes/functionalize.h"
#include "bellows/graph/recording/frozen.h"
#include "bellows/graph/recording/region.h"
#include "bellows/system/machine.h"

namespace bellows::compile_detail::testing {

using Tensors = std::vector<at::Tensor>;

[[maybe_unused]] inline const bool arenas_are_poisoned = (graph::poison_arenas(true), true);

/// Puts oneDNN's primitives into programs, and changes nothing else.
class OnednnBackend : public graph::Backend {
 public:
  /// Params: frozen – tensors that keep their values
  explicit OnednnBackend(Tensors frozen = {}) : frozen_(std::move(frozen)) {}

  std::shared_ptr<graph::Executable> prepare(graph::Program program, std::span<const c10::Storage> inputs) override {
    graph::functionalize(program);
    graph::Remaining left = graph::freeze_inputs(program, inputs, graph::are_frozen(inputs, frozen_));
    reports.push_back(use_onednn(program));
    text = program.to_text();
    return std::make_shared<graph::FrozenRunner>(std::move(program), std::move(left));
  }
  std::string to_text() const override { return text; }

  std::vector<OnednnReport> reports;
  std::string text;

 private:
  Tensors frozen_;
};

/// oneDNN has fast bf16 code from AVX-512 on. On other processors bf16 is left to libtorch's operators.
inline bool has_bf16_primitives() {
  return this_machine().has("avx512f");
}

/// The types that oneDNN computes in on this processor.
inline std::vector<at::ScalarType> primitive_types() {
  if (has_bf16_primitives()) return {at::kFloat, at::kBFloat16};
  return {at::kFloat};
}

struct Outcome {
  Tensors tensors;  ///< of the last call
  OnednnReport report;
  std::string text;
};

/// Calls a function until it has been followed twice; what it leaves is that of the last call.
inline Outcome with_onednn(const std::function<Tensors()>& function, const Tensors& frozen = {}, int calls = 4) {
  const auto backend = std::make_shared<OnednnBackend>(frozen);
  graph::Region region({.backend = backend});
  Outcome made;
  for (int call = 0; call < calls; ++call) region.run([&] { made.tensors = function(); });
  EXPECT_GE(region.explain().followed_calls, 2) << region.explain().to_text();
  if (!backend->reports.empty()) made.report = backend->reports.back();
  made.text = backend->text;
  return made;
}

inline double largest(const at::Tensor& t) {
  return t.numel() == 0 ? 0 : t.abs().max().item<double>();
}

/// Ours is no further from the fp64 result than twice what libtorch's fp32 is. Errors of a few last places pass: where libtorch happens
/// to hit a value exactly, twice nothing is too little.
/// Params: places – how many, of the largest value
inline void expect_as_exact(const at::Tensor& ours, const at::Tensor& plain, const at::Tensor& exact,
                            const std::string& what, double places = 4) {
  ASSERT_EQ(ours.defined(), plain.defined()) << what;
  if (!ours.defined()) return;
  ASSERT_EQ(ours.sizes(), plain.sizes()) << what;
  EXPECT_EQ(ours.strides(), plain.strides()) << what;
  const double floor = places * std::numeric_limits<float>::epsilon() * largest(exact);
  const double error = largest(ours.detach().to(at::kDouble) - exact.detach()),
               theirs = largest(plain.detach().to(at::kDouble) - exact.detach());
  EXPECT_LE(error, 2 * theirs + floor) << what << ", libtorch's error " << theirs;
}

}  // namespace bellows::compile_detail::testing
