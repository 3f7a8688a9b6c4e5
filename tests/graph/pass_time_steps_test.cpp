// The passes "buffers" and "time steps", with generated kernels replaced by an interpreter of expressions.
#include "tests/graph/pass_support.h"

namespace bellows::graph::testing {
namespace {

using Kernels = PassBackend::Kernels;

constexpr int64_t batch = 3, width = 5, hidden = 4;

/// A function of tensors that are leaves with gradients, for each call. Its results are followed by all gradients.
std::function<Program()> trained(const std::function<at::Tensor(const Tensors&)>& loss,
                                 const std::vector<std::vector<int64_t>>& sizes) {
  return [=] {
    Tensors leaves;
    for (const auto& size : sizes) leaves.push_back(torch::randn(size).requires_grad_());
    return Program{[=](int) {
                     for (const at::Tensor& leaf : leaves) leaf.mutable_grad() = at::Tensor();
                     const at::Tensor value = loss(leaves);
                     value.backward();
                     Tensors results{value.detach()};
                     for (const at::Tensor& leaf : leaves) results.push_back(leaf.grad());
                     return results;
                   },
                   [=] { return leaves; }};
  };
}

/// Counts the operators of the program that ran last.
int64_t count(const PassBackend& backend, const std::string& name) {
  int64_t found = 0;
  for (const Instruction& one : backend.programs.back().instructions) found += one.op && one.op->name == name;
  return found;
}

/// A recurrent network without gates: h = tanh(x W + h U).
at::Tensor simple_network(const Tensors& given) {
  at::Tensor state = torch::zeros({batch, hidden});
  for (const at::Tensor& x : given[0].unbind(0)) state = (at::mm(x, given[1]) + at::mm(state, given[2])).tanh();
  return state.square().sum();
}
const std::vector<std::vector<int64_t>> simple_sizes{{6, batch, width}, {width, hidden}, {hidden, hidden}};

TEST(TimeSteps, ShareMatmulsOfInputsAndOfGradients) {
  const auto backend = expect_passed(trained(simple_network, simple_sizes), PassBackend({}, Kernels::groups), 1e-5);
  // Forward: one for all inputs, and one per step. Backward: one for all inputs, five for states, two for weights.
  EXPECT_EQ(count(*backend, "aten::mm"), 1 + 6 + 1 + 5 + 2) << backend->programs.back().to_text();
  EXPECT_GE(backend->reports.back().fired("time steps"), 4);
}

TEST(TimeSteps, StayWithExact) {
  const auto backend = expect_passed(trained(simple_network, simple_sizes), PassBackend({.exact = true}));
  EXPECT_EQ(backend->fired("time steps") + backend->fired("buffers"), 0);
}

/// Two layers whose steps alternate.
at::Tensor two_layers(const Tensors& given) {
  at::Tensor first = torch::zeros({batch, hidden}), second = first;
  for (const at::Tensor& x : given[0].unbind(0)) {
    first = at::addmm(given[3], x, given[1]).add(at::mm(first, given[2])).tanh();
    second = at::addmm(given[6], first, given[4]).add(at::mm(second, given[5])).tanh();
  }
  return (second * second).sum() + first.sum();
}

TEST(TimeSteps, OfTheNextLayerRunAfterThoseOfTheFirst) {
  const auto backend = expect_passed(trained(two_layers, {{5, batch, width},
                                                          {width, hidden},
                                                          {hidden, hidden},
                                                          {hidden},
                                                          {hidden, hidden},
                                                          {hidden, hidden},
                                                          {hidden}}),
                                     PassBackend({}, Kernels::groups), 1e-5);
  EXPECT_EQ(count(*backend, "aten::addmm"), 2) << backend->programs.back().to_text();
}

TEST(TimeSteps, KeepValuesThatOthersNeed) {
  const auto body = [](const Tensors& given) {
    Tensors all;
    at::Tensor input = given[0].clone();
    for (int i = 0; i < 4; ++i) {
      all.push_back(at::mm(input, given[1]));  // an output, so it keeps memory of its own
      input.add_(1);                           // the next matmul reads other values
    }
    at::Tensor sum = at::mm(given[0], given[1]);
    for (int i = 0; i < 3; ++i) {
      const at::Tensor term = at::mm(input.t(), input);
      input.mul_(0.5);
      all.push_back(term + 1);
      sum = sum + at::mm(given[0], term.slice(1, 0, hidden));
    }
    all.push_back(sum);
    return all;
  };
  expect_passed(pure(body, {{width, width}, {width, hidden}}), PassBackend({}, Kernels::groups), 1e-5);
}

TEST(TimeSteps, SumsOverwrittenOperandsBeforeTheyChange) {
  const auto body = [](const Tensors& given) {
    at::Tensor state = given[0].clone(), sum;
    for (int i = 0; i < 5; ++i) {
      const at::Tensor term = at::mm(state.t(), given[0]);
      sum = i ? sum + term : term;
      state.slice(1, 0, 2).mul_(0.5);  // must run after this matmul, and before the next one
    }
    return Tensors{sum};
  };
  const auto backend = expect_passed(pure(body, {{batch, width}}), PassBackend({}, Kernels::groups), 1e-5);
  EXPECT_EQ(backend->fired("time steps"), 0) << backend->programs.back().to_text();
}

TEST(TimeSteps, SumOtherTermsToo) {
  const auto body = [](const Tensors& given) {
    at::Tensor sum = given[1] * 2, bias = given[2] + 1;
    for (const at::Tensor& x : given[0].unbind(0)) {
      sum = sum + at::mm(x.t(), x.sin());
      bias = bias + x.cos().sum(0);
    }
    return Tensors{sum, bias};
  };
  const auto backend =
      expect_passed(pure(body, {{6, batch, width}, {width, width}, {width}}), PassBackend({}, Kernels::groups), 1e-5);
  EXPECT_EQ(count(*backend, "aten::mm"), 1) << backend->programs.back().to_text();
}

/// The gates of a GRU, which libtorch overwrites part by part.
Tensors gates(const Tensors& given, bool keeps) {
  at::Tensor all = at::mm(given[0], given[1]);
  auto parts = all.unsafe_chunk(3, 1);
  parts[0].add_(given[2]).sigmoid_();
  parts[1].add_(given[2]).sigmoid_();
  const at::Tensor kept = parts[2].clone();
  parts[2].mul_(parts[0]);
  const at::Tensor state = parts[1] * kept + parts[2].tanh();
  return keeps ? Tensors{state, all} : Tensors{state};
}

TEST(Buffers, OfGatesAreOneGroup) {
  for (const bool keeps : {false, true}) {
    const auto body = [=](const Tensors& given) { return gates(given, keeps); };
    const auto backend = expect_passed(pure(body, {{batch, width}, {width, 3 * hidden}, {batch, hidden}}),
                                       PassBackend({}, Kernels::groups), 1e-5);
    EXPECT_EQ(backend->reports.back().fired("buffers"), 1);
    EXPECT_EQ(backend->programs.back().instructions.size(), 2U) << backend->programs.back().to_text();
  }
}

TEST(Buffers, WhosePartsOverlapStay) {
  const auto body = [](const Tensors& given) {
    const at::Tensor all = at::mm(given[0], given[1]);
    all.slice(1, 0, 4).sigmoid_();
    all.slice(1, 3, 8).tanh_();
    all.slice(1, 8, 12).add_(all.slice(1, 2, 6));
    return Tensors{all.slice(1, 0, 6) * 2};
  };
  const auto backend = expect_passed(pure(body, {{batch, width}, {width, 12}}), PassBackend({}, Kernels::groups), 1e-5);
  EXPECT_EQ(backend->fired("buffers"), 0) << backend->programs.back().to_text();
}

TEST(Buffers, ThatAreReadInPartsAreComputedInParts) {
  const auto body = [](const Tensors& given) {
    const auto parts = (at::mm(given[0], given[1]) + given[2]).chunk(3, 1);
    return Tensors{parts[0].sigmoid() * parts[1].tanh() + parts[2]};
  };
  const auto backend = expect_passed(pure(body, {{batch, width}, {width, 3 * hidden}, {3 * hidden}}),
                                     PassBackend({}, Kernels::groups), 1e-5);
  EXPECT_EQ(backend->reports.back().fired("buffers"), 1);
  EXPECT_EQ(backend->programs.back().instructions.size(), 2U) << backend->programs.back().to_text();
}

TEST(Concatenations, OfEqualPartsJoinALoop) {
  const auto body = [](const Tensors& given) {
    const at::Tensor all = at::cat({given[0].sin(), given[0] * given[1], given[1].tanh()}, 1);
    return Tensors{all, at::cat({all, given[0]}, 1), at::cat({given[0], given[1]}, 0)};
  };
  const auto backend =
      expect_passed(pure(body, {{batch, width}, {batch, width}}), PassBackend({}, Kernels::groups), 1e-5);
  EXPECT_EQ(count(*backend, "aten::cat"), 2) << "parts of other sizes, or along another dim";
  expect_passed(pure(body, {{1, 1}, {1, 1}}), PassBackend({}, Kernels::groups), 1e-5);
}

}  // namespace
}  // namespace bellows::graph::testing
