#include "bellows/nn/activation.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "bellows/kernels/activation.h"
#include "tests/nn/gradcheck.h"
#include "tests/nn/memory.h"
#include "tests/nn/targets.h"
#include "tests/support/errors.h"

namespace bellows::nn {

namespace {

using kernels::Activation;
using testing::HasSubstr;

/// y, dx, dup and y once more.
std::vector<at::Tensor> run_activation(bool ours, Activation activation, const at::Tensor& x, const at::Tensor& up,
                                       const at::Tensor& dy) {
  const at::Tensor y = torch::full_like(x, -7), dx = torch::full_like(x, -7), dup = torch::full_like(x, -7);
  const at::Tensor again = torch::full_like(x, -7);
  const kernels::ActivationForward forward{activation,   x.scalar_type(), x.numel(),
                                           x.data_ptr(), up.data_ptr(),   y.data_ptr()};
  const kernels::ActivationBackward backward{activation,    x.scalar_type(), x.numel(),
                                             dy.data_ptr(), x.data_ptr(),    up.data_ptr(),
                                             dx.data_ptr(), dup.data_ptr(),  again.data_ptr()};
  ours ? kernels::activation_forward(forward) : kernels::ref::activation_forward(forward);
  ours ? kernels::activation_backward(backward) : kernels::ref::activation_backward(backward);
  return {y, dx, dup, again};
}

/// One of the functions, by ours or by libtorch's operators.
struct ActivationCall {
  const char* name;
  bool gated;
  std::function<at::Tensor(const std::vector<at::Tensor>&)> ours, libtorch;
};

/// Inputs: x or gate, up, weight, bias.
std::vector<ActivationCall> activation_calls() {
  const auto linear = [](const at::Tensor& x, const std::vector<at::Tensor>& t) { return at::linear(x, t[2], t[3]); };
  return {{"gelu_linear", false, [](const auto& t) { return gelu_linear(t[0], t[2], t[3]); },
           [=](const auto& t) { return linear(at::gelu(t[0]), t); }},
          {"gelu_linear by tanh", false, [](const auto& t) { return gelu_linear(t[0], t[2], t[3], {.tanh = true}); },
           [=](const auto& t) { return linear(at::gelu(t[0], "tanh"), t); }},
          {"swiglu", true, [](const auto& t) { return swiglu(t[0], t[1]); },
           [](const auto& t) { return at::silu(t[0]) * t[1]; }},
          {"swiglu_linear", true, [](const auto& t) { return swiglu_linear(t[0], t[1], t[2], t[3]); },
           [=](const auto& t) { return linear(at::silu(t[0]) * t[1], t); }}};
}

std::vector<at::Tensor> activation_inputs(at::ScalarType dtype) {
  at::manual_seed(5);
  return {(torch::randn({3, 4, 17}) * 2).to(dtype), torch::randn({3, 4, 17}).to(dtype), torch::randn({6, 17}).to(dtype),
          torch::randn({6}).to(dtype)};
}

/// The output, then gradients of all inputs (of which some are undefined).
std::vector<at::Tensor> results_of(const std::function<at::Tensor(const std::vector<at::Tensor>&)>& function,
                                   const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> leaves;
  leaves.reserve(inputs.size());
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().clone().requires_grad_());
  const at::Tensor y = function(leaves);
  (y * torch::linspace(0.5, 1.5, y.numel(), y.options()).view_as(y)).sum().backward();
  std::vector<at::Tensor> result = {y.detach()};
  result.reserve(leaves.size() + 1);
  for (const at::Tensor& leaf : leaves) result.push_back(leaf.grad());
  return result;
}

void expect_all_near(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& exact, double tolerance) {
  for (size_t i = 0; i < exact.size(); ++i) {
    ASSERT_EQ(ours[i].defined(), exact[i].defined()) << i;
    if (!exact[i].defined()) continue;
    const double largest = exact[i].abs().max().item<double>();
    EXPECT_LE((ours[i].to(at::kDouble) - exact[i].to(at::kDouble)).abs().max().item<double>(), tolerance * largest)
        << i;
  }
}

}  // namespace

TEST(ActivationKernel, EqualsTheReferenceOnEveryTarget) {
  at::manual_seed(1);
  for_each_target([] {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      for (const Activation activation : {Activation::gelu, Activation::gelu_tanh, Activation::swiglu}) {
        const at::Tensor x = at::cat({torch::linspace(-30, 30, 601), torch::randn({20003})}).to(dtype);
        const at::Tensor up = torch::randn_like(x), dy = torch::randn_like(x);
        const auto ours = run_activation(true, activation, x, up, dy);
        const auto reference = run_activation(false, activation, x, up, dy);
        const double tolerance = dtype == at::kDouble  ? 1e-13
                                 : dtype == at::kFloat ? 3e-6
                                 : dtype == at::kHalf  ? 1e-3
                                                       : 8e-3;
        for (size_t i = 0; i < ours.size(); ++i) {
          EXPECT_TRUE(at::allclose(ours[i].to(at::kDouble), reference[i].to(at::kDouble), tolerance, tolerance))
              << dtype << " " << static_cast<int>(activation) << " result " << i;
        }
        EXPECT_TRUE(torch::equal(ours[0], ours[3])) << "y of both passes";
      }
    }
  });
}

TEST(ActivationKernel, NanStaysNan) {
  const at::Tensor x = torch::full({3}, NAN), one = torch::ones({3});
  for (const Activation activation : {Activation::gelu, Activation::gelu_tanh, Activation::swiglu}) {
    const auto results = run_activation(true, activation, x, one, one);
    EXPECT_TRUE(results[0].isnan().all().item<bool>() && results[1].isnan().all().item<bool>());
  }
}

TEST(Activation, EqualsLibtorchsOperators) {
  for (const ActivationCall& call : activation_calls()) {
    SCOPED_TRACE(call.name);
    const auto inputs = activation_inputs(at::kDouble);
    const auto exact = results_of(call.libtorch, inputs);
    expect_all_near(results_of(call.ours, inputs), exact, 1e-12);
    expect_all_near(results_of(call.ours, activation_inputs(at::kFloat)), exact, 3e-6);
    expect_all_near(results_of(call.ours, activation_inputs(at::kBFloat16)), exact, 3e-2);
    const auto turned = [](const std::vector<at::Tensor>& t) {
      return std::vector<at::Tensor>{t[0].transpose(0, 1), t[1].transpose(0, 1), t[2].t().contiguous().t(), t[3]};
    };
    expect_all_near(results_of([&](const auto& t) { return call.ours(turned(t)); }, inputs),
                    results_of([&](const auto& t) { return call.libtorch(turned(t)); }, inputs), 1e-12);
  }
}

TEST(Activation, RecordedGradientsWhereOneInputComesFromAnother) {
  at::manual_seed(3);
  const at::Tensor x = torch::randn({4, 4}, at::kDouble).requires_grad_();
  const std::vector<std::function<at::Tensor()>> calls{[&] { return swiglu(x, x); }, [&] { return swiglu(x, x * 2); },
                                                       [&] { return gelu_linear(x * 1, x); },
                                                       [&] { return swiglu_linear(x, x.sin(), x.cos()); }};
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto gradient = [&](bool create_graph) {
      return torch::autograd::grad({calls[i]().sum()}, {x}, {}, true, create_graph)[0].detach();
    };
    EXPECT_TRUE(at::allclose(gradient(true), gradient(false), 1e-12, 1e-12)) << i;
  }
}

TEST(Activation, GradientsAgreeWithFiniteDifferencesAndCanBeDifferentiatedAgain) {
  for (const ActivationCall& call : activation_calls()) {
    SCOPED_TRACE(call.name);
    const auto inputs = activation_inputs(at::kDouble);
    const at::Tensor x = inputs[0].slice(2, 0, 5).contiguous(), up = inputs[1].slice(2, 0, 5).contiguous();
    const at::Tensor w = inputs[2].slice(1, 0, 5).contiguous();
    EXPECT_TRUE(gradcheck([&](const GradcheckInputs& t) { return call.ours({t[0], up, w, inputs[3]}); }, {x}));
    const auto second = [&](const auto& function) {
      const at::Tensor leaf = x.clone().requires_grad_(), factor = w.clone().requires_grad_();
      const at::Tensor y = function({leaf, up, factor, inputs[3]});
      const auto first = torch::autograd::grad({y.sin().sum()}, {leaf}, {}, true, /*create_graph=*/true)[0];
      return torch::autograd::grad({first.cos().sum()}, {leaf})[0];
    };
    EXPECT_TRUE(at::allclose(second(call.ours), second(call.libtorch), 1e-10, 1e-11));
  }
}

TEST(Activation, KeepsItsInputsOnly) {
  const at::Tensor x = torch::randn({512, 1024}).requires_grad_() * 1,
                   up = torch::randn({512, 1024}).requires_grad_() * 1;
  const at::Tensor w = torch::randn({8, 1024}).requires_grad_(), b = torch::randn({8}).requires_grad_();
  const auto size = static_cast<int64_t>(x.nbytes());
  EXPECT_EQ(kept_bytes([&] { return gelu_linear(x, w, b); }), size);
  EXPECT_EQ(kept_bytes([&] { return at::linear(at::gelu(x), w, b); }), 2 * size);
  EXPECT_EQ(kept_bytes([&] { return swiglu(x, up); }), 2 * size);
  EXPECT_EQ(kept_bytes([&] { return swiglu_linear(x, up, w, b); }), 2 * size);
  EXPECT_EQ(kept_bytes([&] { return at::linear(at::silu(x) * up, w, b); }), 4 * size);
  const auto step = [&] { torch::autograd::grad({gelu_linear(x, w, b).sum()}, {x, w, b}); };
  EXPECT_LT(peak_bytes(step), 2 * size + (1 << 18));
}

TEST(Activation, AutocastGivesTheDtypesOfLinear) {
  const at::Tensor x = torch::randn({4, 8}), w = torch::randn({3, 8}).requires_grad_();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const at::Tensor y = gelu_linear(x, w), reference = at::linear(at::gelu(x), w);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(y.scalar_type(), reference.scalar_type());
  y.sum().backward();
  EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(y.to(at::kFloat), reference.to(at::kFloat), 3e-2, 5e-2));
}

TEST(Activation, RefusesWhatDoesNotFit) {
  const at::Tensor x = torch::randn({4, 6}), w = torch::randn({3, 6});
  EXPECT_THAT(message_of([&] {
                gelu_linear(x, torch::randn({3, 5}));
              }),
              HasSubstr("gelu_linear: expected a weight [M, 6]"));
  EXPECT_THAT(message_of([&] { gelu_linear(x, w, torch::randn({4})); }),
              HasSubstr("expected a bias [3], got Float [4]"));
  EXPECT_THAT(message_of([&] { gelu_linear(x, w.to(at::kDouble)); }),
              HasSubstr("a weight with the dtype and device of the input, Float on cpu, got Double"));
  EXPECT_THAT(
      message_of([&] { swiglu(x, w); }),
      HasSubstr(
          "swiglu: expected `up` with the shape, dtype and device of the gate, Float [4, 6] on cpu, got Float [3, 6]"));
  EXPECT_THAT(message_of([&] { swiglu_linear(x.to(at::kLong), x, w); }), HasSubstr("expected a gate of type Float"));
}

}  // namespace bellows::nn
