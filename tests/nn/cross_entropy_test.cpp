#include "bellows/nn/cross_entropy.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "bellows/kernels/softmax.h"
#include "tests/nn/gradcheck.h"
#include "tests/nn/memory.h"
#include "tests/nn/targets.h"
#include "tests/support/errors.h"

namespace bellows::nn {

namespace {

using testing::HasSubstr;

at::ScalarType sums_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? dtype : at::kFloat;
}

/// Statistics and gradient of rows that lie within wider ones, in two ranges of classes.
std::vector<at::Tensor> run_softmax_kernels(bool ours, const at::Tensor& wide, int64_t columns,
                                            const at::Tensor& target) {
  const int64_t rows = wide.size(0);
  at::Tensor state = torch::zeros({4, rows}, sums_of(wide.scalar_type())), gradient = torch::full_like(wide, -7);
  state[0].fill_(-HUGE_VAL);
  const int64_t first = columns / 3;
  const auto part = [&](int64_t begin, int64_t end) {
    return kernels::SoftmaxRows{
        wide.scalar_type(),        rows, end - begin, wide.stride(0), begin, wide.slice(1, begin).data_ptr(),
        target.data_ptr<int64_t>()};
  };
  for (const auto& scores : {part(0, first), part(first, columns)}) {
    const kernels::SoftmaxStatistics args{scores, state[0].data_ptr(), state[1].data_ptr(), state[2].data_ptr(),
                                          state[3].data_ptr()};
    ours ? kernels::softmax_statistics(args) : kernels::ref::softmax_statistics(args);
  }
  const at::Tensor log_sum = state[0] + state[1].log();
  const at::Tensor scale = torch::linspace(0, 2, rows, state.options());  // the first row's is 0
  for (const auto& scores : {part(0, first), part(first, columns)}) {
    const kernels::SoftmaxGradient args{
        scores, log_sum.data_ptr(), scale.data_ptr(), 0.8, 0.1, gradient.slice(1, scores.first).data_ptr()};
    ours ? kernels::softmax_gradient(args) : kernels::ref::softmax_gradient(args);
  }
  return {log_sum, state[2], state[3], gradient};
}

struct LossAndGradients {
  at::Tensor loss;
  std::vector<at::Tensor> gradients;
};

template <class Loss>
LossAndGradients differentiate(Loss loss, const std::vector<at::Tensor>& inputs, double scale = 1) {
  std::vector<at::Tensor> leaves;
  leaves.reserve(inputs.size());
  for (const at::Tensor& input : inputs) {
    leaves.push_back(input.defined() ? input.detach().clone().requires_grad_() : input);
  }
  const at::Tensor value = loss(leaves);
  const at::Tensor weights = torch::linspace(1, 2, value.numel(), value.options()).view_as(value);
  (value * weights * scale).sum().backward();
  LossAndGradients result{value.detach(), {}};
  result.gradients.reserve(leaves.size());
  for (const at::Tensor& leaf : leaves) result.gradients.push_back(leaf.defined() ? leaf.grad() : leaf);
  return result;
}

void expect_close(const LossAndGradients& ours, const LossAndGradients& theirs, double tolerance) {
  const auto near = [&](const at::Tensor& a, const at::Tensor& b) {
    const double largest = b.abs().max().item<double>();
    EXPECT_LE((a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>(), tolerance * (largest + 1e-3));
  };
  near(ours.loss, theirs.loss);
  for (size_t i = 0; i < ours.gradients.size(); ++i) {
    ASSERT_EQ(ours.gradients[i].defined(), theirs.gradients[i].defined());
    if (ours.gradients[i].defined()) near(ours.gradients[i], theirs.gradients[i]);
  }
}

struct LinearCase {
  at::Tensor hidden, weight, bias, target;
  std::vector<at::Tensor> inputs() const { return {hidden, weight, bias}; }
};

LinearCase linear_case(at::ScalarType dtype, bool with_bias) {
  at::manual_seed(7);
  LinearCase made{torch::randn({2, 5, 6}, dtype), torch::randn({11, 6}, dtype),
                  with_bias ? torch::randn({11}, dtype) : at::Tensor(), torch::randint(11, {2, 5}, at::kLong)};
  made.target[1][2] = -100;
  return made;
}

at::Tensor composed(const std::vector<at::Tensor>& t, const at::Tensor& target, double smoothing, int64_t reduction) {
  const at::Tensor logits = at::linear(t[0], t[1], t[2].defined() ? std::optional(t[2]) : std::nullopt);
  return at::cross_entropy_loss(logits.flatten(0, 1), target.flatten(), {}, reduction, -100, smoothing);
}

}  // namespace

TEST(SoftmaxKernel, EqualsTheReferenceOnEveryTarget) {
  at::manual_seed(1);
  for_each_target([] {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      for (const int64_t columns : {1, 2, 15, 64, 131, 1000}) {
        const at::Tensor wide = (torch::randn({5, columns + 3}) * 4).to(dtype);
        const at::Tensor target = torch::randint(columns, {5}, at::kLong);
        target[4] = -1;
        const auto ours = run_softmax_kernels(true, wide, columns, target);
        const auto reference = run_softmax_kernels(false, wide, columns, target);
        const double tolerance = dtype == at::kDouble ? 1e-12 : 2e-6;
        for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::allclose(ours[i], reference[i], tolerance, 100 * tolerance));
        const double rounding = dtype == at::kHalf ? 1e-3 : dtype == at::kBFloat16 ? 8e-3 : tolerance;
        EXPECT_TRUE(at::allclose(ours[3].to(at::kDouble), reference[3].to(at::kDouble), rounding, tolerance))
            << dtype << " " << columns;
      }
    }
  });
}

TEST(SoftmaxCrossEntropy, EqualsLibtorchs) {
  at::manual_seed(2);
  at::Tensor target = torch::randint(9, {4, 3}, at::kLong);
  target[2][1] = -100;
  for (const bool overwrite : {false, true}) {
    for (const double smoothing : {0.0, 0.2}) {
      for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
        const int64_t aten = reduction == Reduction::mean ? 1 : reduction == Reduction::sum ? 2 : 0;
        const auto ours = [&](const std::vector<at::Tensor>& t) {
          return softmax_cross_entropy(
              t[0] * 2, target, {.label_smoothing = smoothing, .reduction = reduction, .overwrite_logits = overwrite});
        };
        const auto theirs = [&](const std::vector<at::Tensor>& t) {
          const at::Tensor loss =
              at::cross_entropy_loss((t[0] * 2).flatten(0, 1), target.flatten(), {}, aten, -100, smoothing);
          return reduction == Reduction::none ? loss.view_as(target) : loss;
        };
        for (const at::Tensor& x :
             {torch::randn({4, 3, 9}, at::kDouble), torch::randn({9, 3, 4}, at::kDouble).transpose(0, 2)}) {
          expect_close(differentiate(ours, {x}), differentiate(theirs, {x}), 1e-12);
        }
      }
    }
  }
}

TEST(SoftmaxCrossEntropy, OverwritesTheLogitsInBackwardOnly) {
  const at::Tensor x = torch::randn({6, 50}).requires_grad_(), target = torch::randint(50, {6}, at::kLong);
  const at::Tensor logits = x * 1, before = logits.detach().clone();
  const at::Tensor loss = softmax_cross_entropy(logits, target, {.overwrite_logits = true});
  EXPECT_TRUE(torch::equal(logits, before));
  loss.backward();
  EXPECT_TRUE(at::allclose(logits, x.grad())) << "x * 1 hands the gradient on";
  const at::Tensor leaf = before.clone().requires_grad_();
  softmax_cross_entropy(leaf, target, {.overwrite_logits = true}).backward();
  EXPECT_TRUE(torch::equal(leaf, before));
  EXPECT_TRUE(at::allclose(leaf.grad(), x.grad()));
  const at::Tensor kept = x * 1, also = kept.square().sum();  // square saves its input
  softmax_cross_entropy(kept, target, {.overwrite_logits = true}).backward();
  EXPECT_ANY_THROW(also.backward());
}

TEST(SoftmaxCrossEntropy, RowsThatShareMemoryAndViewsOfLeaves) {
  at::manual_seed(5);
  const at::Tensor x = torch::randn({12}, at::kDouble), target = torch::randint(9, {4}, at::kLong);
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> ways{
      [](const at::Tensor& t) {
        return t.slice(0, 0, 9).expand({4, 9});
      },
      [](const at::Tensor& t) { return t.unfold(0, 9, 1); },
      [](const at::Tensor& t) {
        return t.repeat({4}).view({4, 12});
      }};
  for (size_t way = 0; way < ways.size(); ++way) {
    const auto theirs =
        differentiate([&](const auto& t) { return at::cross_entropy_loss(ways[way](t[0]), target); }, {x});
    for (const bool overwrite : {false, true}) {
      const auto ours = [&](const std::vector<at::Tensor>& t) {
        return softmax_cross_entropy(ways[way](t[0]), target, {.overwrite_logits = overwrite});
      };
      SCOPED_TRACE(c10::str("way ", way, ", overwrite ", overwrite));
      expect_close(differentiate(ours, {x}), theirs, 1e-12);
    }
  }
  const at::Tensor leaf = torch::randn({4, 9}).requires_grad_(), before = leaf.detach().clone();
  softmax_cross_entropy(leaf.view({2, 2, 9}), target.view({2, 2}), {.overwrite_logits = true}).backward();
  EXPECT_TRUE(torch::equal(leaf, before));
}

TEST(SoftmaxCrossEntropy, NanInfinityAndNothingButIgnored) {
  const at::Tensor target = torch::tensor({1, 0, -100});
  const at::Tensor x =
      torch::tensor({{1.F, -HUGE_VALF, -HUGE_VALF}, {NAN, 1.F, 2.F}, {NAN, NAN, NAN}}).requires_grad_();
  const at::Tensor loss = softmax_cross_entropy(x, target, {.reduction = Reduction::none});
  EXPECT_TRUE(std::isinf(loss[0].item<double>()));
  EXPECT_TRUE(std::isnan(loss[1].item<double>()));
  EXPECT_EQ(loss[2].item<double>(), 0);
  loss.sum().backward();
  EXPECT_TRUE(x.grad()[1].isnan().all().item<bool>());
  EXPECT_TRUE(torch::equal(x.grad()[2], torch::zeros({3})));
  const at::Tensor none = torch::full({3}, -100, at::kLong);
  EXPECT_TRUE(std::isnan(softmax_cross_entropy(x, none).item<double>()));
}

TEST(LinearCrossEntropy, EqualsTheCompositionInFloat64) {
  for (const bool with_bias : {true, false}) {
    const LinearCase made = linear_case(at::kDouble, with_bias);
    for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
      const int64_t aten = reduction == Reduction::mean ? 1 : 2;
      const double smoothing = reduction == Reduction::mean ? 0 : 0.2;
      const auto theirs =
          differentiate([&](const std::vector<at::Tensor>& t) { return composed(t, made.target, smoothing, aten); },
                        made.inputs(), 3);
      for (const int64_t chunk : {0, 1, 3, 10}) {
        for (const int64_t vocabulary_chunk : {0, 1, 4, 20}) {
          SCOPED_TRACE(c10::str(chunk, " rows, ", vocabulary_chunk, " classes"));
          const LinearCrossEntropyOptions options{.label_smoothing = smoothing,
                                                  .reduction = reduction,
                                                  .chunk = chunk,
                                                  .vocabulary_chunk = vocabulary_chunk};
          const auto ours = differentiate(
              [&](const std::vector<at::Tensor>& t) {
                return linear_cross_entropy(t[0], t[1], t[2], made.target, options);
              },
              made.inputs(), 3);
          expect_close(ours, theirs, 1e-12);
        }
      }
    }
  }
}

TEST(LinearCrossEntropy, GradientsAgreeWithFiniteDifferences) {
  const LinearCase made = linear_case(at::kDouble, true);
  EXPECT_TRUE(gradcheck(
      [&](const GradcheckInputs& t) {
        return linear_cross_entropy(t[0], t[1], t[2], made.target, {.label_smoothing = 0.1, .chunk = 4});
      },
      {made.hidden, made.weight, made.bias}));
  EXPECT_TRUE(gradcheck([&](const GradcheckInputs& t) { return softmax_cross_entropy(t[0], made.target); },
                        {torch::randn({2, 5, 11}, at::kDouble)}));
}

// bf16 keeps 8 bits; errors of gradients are compared with their largest value, and with those of libtorch's operators.
TEST(LinearCrossEntropy, LowPrecisionAndAutocast) {
  at::manual_seed(4);
  LinearCase made{torch::randn({40, 32}), torch::randn({300, 32}) / 4, {}, torch::randint(300, {40}, at::kLong)};
  const auto ours = [&](const std::vector<at::Tensor>& t) {
    return linear_cross_entropy(t[0], t[1], {}, made.target, {.chunk = 16, .vocabulary_chunk = 100});
  };
  const std::vector<at::Tensor> wide = {made.hidden.to(at::kDouble), made.weight.to(at::kDouble)};
  const auto exact = differentiate(ours, wide);
  expect_close(differentiate(ours, {made.hidden, made.weight}), exact, 1e-5);
  const std::vector<at::Tensor> low = {made.hidden.to(at::kBFloat16), made.weight.to(at::kBFloat16)};
  expect_close(differentiate(ours, low), exact, 3e-2);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const auto cast = differentiate(ours, {made.hidden, made.weight});
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(cast.gradients[1].scalar_type(), at::kFloat);
  EXPECT_EQ(cast.loss.scalar_type(), at::kFloat);
  expect_close(cast, exact, 3e-2);
  EXPECT_FALSE(torch::equal(cast.gradients[1].to(at::kBFloat16).to(at::kFloat), cast.gradients[1])) << "summed in fp32";
}

TEST(LinearCrossEntropy, NothingOfTheScoresSizeIsEverThere) {
  constexpr int64_t rows = 512, width = 16, classes = 30522, mib = 1 << 20;
  const at::Tensor hidden = torch::randn({rows, width}).requires_grad_();
  const at::Tensor weight = torch::randn({classes, width}).requires_grad_();
  const at::Tensor target = torch::randint(classes, {rows}, at::kLong);
  const auto peak = [&](int64_t chunk, int64_t vocabulary_chunk) {
    return peak_bytes([&] {
      const at::Tensor loss =
          linear_cross_entropy(hidden, weight, {}, target, {.chunk = chunk, .vocabulary_chunk = vocabulary_chunk});
      if (loss.requires_grad()) torch::autograd::grad({loss}, {hidden, weight});
    });
  };
  EXPECT_EQ(rows * classes * 4 / mib, 59);
  EXPECT_LT(peak(0, 0), 36 * mib);      // 32 of scores, 2 of gradients
  EXPECT_LT(peak(128, 2048), 4 * mib);  // 1 of scores
  const c10::NoGradGuard no_grad;
  EXPECT_LT(peak(64, 0), 8 * mib);  // 7.5 of scores
}

TEST(SoftmaxCrossEntropy, KeepsAndTakesNothingOfTheScoresSize) {
  constexpr int64_t rows = 256, classes = 30522, mib = 1 << 20;
  const at::Tensor x = torch::randn({rows, classes}).requires_grad_(),
                   target = torch::randint(classes, {rows}, at::kLong);
  const at::Tensor logits = x * 1;
  const int64_t size = static_cast<int64_t>(logits.nbytes());
  EXPECT_LT(kept_bytes([&] { return softmax_cross_entropy(logits, target); }), size + mib / 8);
  EXPECT_GT(kept_bytes([&] { return at::cross_entropy_loss(logits, target, {}, 1, -100, 0.0); }), size);
  const auto step = [&](bool ours) {
    const at::Tensor own = logits.detach().clone().requires_grad_().mul(1);  // as the output of a layer
    const int64_t before = tap::cpu_allocation_counters().current_bytes;
    tap::reset_cpu_allocation_peak();
    const at::Tensor loss = ours ? softmax_cross_entropy(own, target, {.overwrite_logits = true})
                                 : at::cross_entropy_loss(own, target, {}, 1, -100, 0.0);
    torch::autograd::grad({loss}, {own});
    return tap::cpu_allocation_counters().peak_bytes - before;
  };
  tap::install_cpu_allocator();
  EXPECT_LT(step(true), mib / 8);
  EXPECT_GT(step(false), 2 * size - mib);
}

TEST(LinearCrossEntropy, RefusesWhatDoesNotFit) {
  const LinearCase made = linear_case(at::kFloat, true);
  const auto call = [&](const LinearCase& c, const LinearCrossEntropyOptions& options = {}) {
    return message_of([&] { linear_cross_entropy(c.hidden, c.weight, c.bias, c.target, options); });
  };
  LinearCase bad = made;
  bad.target = made.target.clone();
  bad.target[0][0] = 11;
  EXPECT_THAT(call(bad), HasSubstr("expected targets from 0 to 10 or ignore_index, got 11"));
  bad = made;
  bad.weight = torch::randn({11, 5});
  EXPECT_THAT(call(bad), HasSubstr("expected a weight [C, 6]"));
  bad = made;
  bad.bias = torch::randn({12});
  EXPECT_THAT(call(bad), HasSubstr("expected a bias [11]"));
  bad = made;
  bad.weight = made.weight.to(at::kDouble);
  EXPECT_THAT(call(bad),
              HasSubstr("weight and bias with the dtype and device of the hidden states, Float on cpu, got Double"));
  EXPECT_THAT(call(made, {.reduction = Reduction::none}), HasSubstr("mean or sum, got none"));
  EXPECT_THAT(call(made, {.chunk = -1}), HasSubstr("chunks of at least 1"));
  EXPECT_THAT(call(made, {.label_smoothing = 2}), HasSubstr("label_smoothing in [0, 1]"));
  EXPECT_THAT(message_of([&] { softmax_cross_entropy(made.hidden, made.target.flatten()); }),
              HasSubstr("int64 [2, 5], got Long [10]"));
  const at::Tensor tiny = made.weight.to(at::kFloat8_e4m3fn), classes = torch::zeros({11}, at::kLong);
  EXPECT_THAT(message_of([&] { softmax_cross_entropy(tiny, classes); }), HasSubstr("BFloat16 or Half, got Float8"));
  EXPECT_THAT(message_of([&] { linear_cross_entropy(tiny, tiny, {}, classes); }), HasSubstr("BFloat16 or Half, got"));
  const at::Tensor hidden = made.hidden.clone().requires_grad_();
  const at::Tensor loss = linear_cross_entropy(hidden, made.weight, made.bias, made.target);
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_THAT(message_of([&] { loss.backward(); }), HasSubstr("a second backward pass"));
  EXPECT_THAT(message_of([&] {
                const at::Tensor again = softmax_cross_entropy(hidden, made.target.clamp(0, 5));
                torch::autograd::grad({again}, {hidden}, {}, true, /*create_graph=*/true);
              }),
              HasSubstr("double backward (create_graph) is not supported"));
}

}  // namespace bellows::nn
