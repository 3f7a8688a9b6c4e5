#include <gmock/gmock.h>

#include <atomic>

#include "bellows/amp/autocast.h"
#include "bellows/nn/cross_entropy.h"
#include "bellows/tap/allocator.h"
#include "bellows/tap/op_tap.h"
#include "tests/recompute/support.h"
#include "tests/support/errors.h"

namespace bellows::recompute::testing {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Counts the calls of one operator that reach the kernels while it lives.
class CountKernels {
 public:
  explicit CountKernels(std::string name)
      : tap_(std::make_shared<Tap>()), guard_((tap_->name = std::move(name), tap_)) {}
  int count() const { return tap_->count; }

 private:
  struct Tap final : tap::OpTap {
    void call(const tap::OpCall& op, tap::Stack& stack) override {
      if (op.name() == name) ++count;
      op.next(stack);
    }
    std::string name;
    std::atomic<int> count{0};
  };
  std::shared_ptr<Tap> tap_;
  tap::OpTapGuard guard_;
};

CheckpointRule always(CheckpointPolicy policy) {
  return [policy](const CheckpointOp&) { return policy; };
}

Call with(const CheckpointOptions& options) {
  return [options](const Layer& block, const at::Tensor& x) { return checkpoint(options, block, x); };
}

struct Block : torch::nn::Module {
  Block() {
    register_module("a", a);
    register_module("b", b);
    register_module("norm", norm);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = torch::dropout(torch::gelu(a->forward(norm->forward(x))), 0.2, is_training());
    return x + b->forward(y + 0.1 * torch::rand_like(y)).relu();
  }
  torch::nn::Linear a{48, 192}, b{192, 48};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({48})};
};

struct Blocks : torch::nn::Module {
  explicit Blocks(int count) {
    torch::manual_seed(1);
    for (int i = 0; i < count; ++i)
      list.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>()));
  }
  at::Tensor forward(at::Tensor x, const Call& call) {
    for (const auto& block : list) x = call([block](const at::Tensor& y) { return block->forward(y); }, x);
    return x;
  }
  std::vector<std::shared_ptr<Block>> list;
};

}  // namespace

TEST(Selection, PoliciesDoNotChangeABit) {
  const at::Tensor x = torch::randn({32, 48});
  using enum CheckpointPolicy;
  const std::vector<CheckpointOptions> ways{{.policy = save_products},
                                            {.policy = always(must_save)},
                                            {.policy = always(must_recompute)},
                                            {.policy = always(offload)},
                                            {.budget = 0.3},
                                            {.policy = save_products, .budget = 0.6, .early_stop = false},
                                            {.budget = 1.0}};
  for (const bool autocast : {false, true}) {
    const auto run = [&](const Call& call) {
      Blocks model(3);
      return trained(
          model,
          [&] {
            const amp::AutocastGuard guard(at::kCPU, at::kBFloat16, autocast);
            return model.forward(x, call).pow(2).mean();
          },
          2);
    };
    const auto plain = run(plainly);
    for (size_t i = 0; i < ways.size(); ++i) {
      EXPECT_EQ(first_difference(plain, run(with(ways[i]))), -1) << "way " << i << ", autocast " << autocast;
      const auto nested = [&](const Layer& block, const at::Tensor& y) {
        return checkpoint(
            ways[i], [block, once = with(ways[(i + 1) % ways.size()])](const at::Tensor& z) { return once(block, z); },
            y);
      };
      EXPECT_EQ(first_difference(plain, run(nested)), -1) << "way " << i << " nested, autocast " << autocast;
    }
  }
}

TEST(Selection, WhatIsKeptIsNotComputedAgain) {
  const at::Tensor x = torch::randn({32, 48}, torch::requires_grad());
  const auto products_in_backward = [&](const CheckpointOptions& options) {
    Blocks model(2);
    const at::Tensor loss = model.forward(x, with(options)).sum();
    const CountKernels count("aten::addmm");
    loss.backward();
    return count.count();
  };
  EXPECT_EQ(products_in_backward({}), 4);
  EXPECT_EQ(products_in_backward({.policy = save_products}), 0);
  EXPECT_EQ(products_in_backward({.policy = always(CheckpointPolicy::must_recompute)}), 4);
  EXPECT_EQ(products_in_backward({.budget = 0.0}), 4);
  EXPECT_EQ(products_in_backward({.policy =
                                      [](const CheckpointOp& op) {
                                        return op.name == "aten::addmm" && op.outputs[0].size(1) == 192
                                                   ? CheckpointPolicy::must_save
                                                   : CheckpointPolicy::must_recompute;
                                      },
                                  .budget = 0.0}),
            2);
}

TEST(Selection, WhatBackwardDoesNotNeedIsLeftOut) {
  const at::Tensor x = torch::randn({32, 48}, torch::requires_grad());
  torch::nn::Linear a(48, 64), b(64, 48);
  const auto f = [&](const at::Tensor& y) {
    const at::Tensor sum = b->forward(torch::gelu(a->forward(y))) + y;  // nobody saves the product in it
    return torch::layer_norm(torch::batch_norm(sum, {}, {}, {}, {}, true, 0.1, 1e-5, false).relu_(), {48}, {}, {});
  };
  const auto kernels = [&](const std::string& name, const CheckpointRule& rule) {
    const at::Tensor loss = checkpoint({.policy = rule}, f, x).sum();
    const CountKernels count(name);
    loss.backward();
    return count.count();
  };
  const auto keeps = [](const std::string& name) {
    return [name](const CheckpointOp& op) {
      return op.name == name ? CheckpointPolicy::must_save : CheckpointPolicy::prefer_recompute;
    };
  };
  EXPECT_EQ(kernels("aten::addmm", keeps("aten::add")), 1);  // the first, for gelu's backward; not the second
  EXPECT_EQ(kernels("aten::add", keeps("aten::addmm")), 2);  // and for the two gradients of x
  EXPECT_EQ(kernels("aten::addmm", keeps("aten::addmm")), 0);
  EXPECT_EQ(kernels("aten::gelu", keeps("aten::addmm")), 1);
  EXPECT_EQ(kernels("aten::relu_", keeps("aten::native_layer_norm")), 1);
}

TEST(Selection, SecondRunsOfMeasuredRegionsCallWhatTheyMust) {
  torch::manual_seed(1);
  // The convolution takes far longer than all other operators, so that the plan is the same on a busy machine.
  const at::Tensor x = torch::randn({8, 16, 16, 16}), w = torch::randn({16, 16, 9, 9}, torch::requires_grad());
  const auto block = [&](const at::Tensor& y) {
    const at::Tensor z = torch::conv2d(y, w, {}, 1, 4);
    return torch::batch_norm(z, {}, {}, {}, {}, true, 0.1, 1e-5, false).add_(y).relu_();
  };
  for (const double fraction : {0.0, 0.51, 1.0}) {
    const BudgetPlanner planner({.fraction = fraction});
    int convolutions = 0, rectified = 0;
    for (int step = 0; step < 6; ++step) {
      w.mutable_grad().reset();
      at::Tensor y = x;
      {
        const BudgetGuard guard(planner);
        for (int i = 0; i < 3; ++i) y = checkpoint(block, y);
      }
      const CountKernels convolution("aten::convolution"), relu("aten::relu_");
      y.sum().backward();
      convolutions = convolution.count();
      rectified = relu.count();
    }
    // Saved of each block: the product, and the sum, written in place twice, which is the next block's input: kept for nothing.
    EXPECT_EQ(convolutions, fraction == 0 ? 3 : 0) << fraction;
    // Without room for mean and deviation, the norm has to be computed again, and with it the sum.
    EXPECT_EQ(rectified, fraction == 0 ? 3 : fraction == 1 ? 0 : 1) << fraction;
    if (fraction == 0) {
      EXPECT_EQ(planner.report().kept_bytes, 0);
    }
  }
}

TEST(Selection, WhatIsReadPastTheOperatorsIsThere) {
  const at::Tensor x = torch::rand({16, 16}, torch::requires_grad());
  int runs = 0;
  float seen = 0;
  const auto f = [&](const at::Tensor& y) {
    ++runs;
    const at::Tensor sum = y.mm(y) + 1;
    seen = sum.const_data_ptr<float>()[0];  // its value is in no graph
    return (y * (seen > 0 ? 2 : 3)).sin();
  };
  const at::Tensor loss = checkpoint({.policy = save_products}, f, x).sum();
  const float first = seen;
  loss.backward();
  EXPECT_EQ(runs, 3);  // the one that left out the sum failed
  EXPECT_EQ(seen, first);
  runs = 0;
  const BudgetGuard guard(0.5);
  for (int step = 0; step < 6; ++step) checkpoint(f, x).sum().backward();
  EXPECT_EQ(runs, 2 * 6 + 1);  // the guard remembers
}

TEST(Selection, WhatTheHostFillsIsFilledAgain) {
  const at::Tensor x = torch::randn({16, 16}, torch::requires_grad());
  const auto fill = [](const at::Tensor& mask, float by) {
    for (int64_t i = 0; i < mask.numel(); ++i) mask.data_ptr<float>()[i] += by;
    return mask;
  };
  const std::vector<Layer> functions{
      [&](const at::Tensor& y) {
        return (y.mm(y) * fill(at::full({16, 16}, 0.5), 1)).tanh();
      },
      [&](const at::Tensor& y) {
        return (y.mm(y) * fill(at::zeros({16, 16}), 1).mul_(0.3).exp_()).tanh();
      },
      [&](const at::Tensor& y) {
        const at::Tensor mask = at::empty({16, 16});
        std::fill_n(mask.data_ptr<float>(), mask.numel(), 0.5F);
        return (y.mm(y) * mask.exp_().exp_().exp_()).tanh();
      },
      [&](const at::Tensor& y) {  // writes a tensor that has no storage; the sum that it reads is in no graph
        const at::Tensor sparse = torch::eye(16).to_sparse();
        return torch::mm(sparse.mul_(y.detach().abs().mean().exp()), y).sin();
      }};
  for (size_t i = 0; i < functions.size(); ++i) {
    const auto gradient = [&](const Call& call) {
      return torch::autograd::grad({call(functions[i], x).square().sum()}, {x})[0];
    };
    const at::Tensor plain = gradient(plainly);
    EXPECT_TRUE(at::equal(gradient(with({.policy = always(CheckpointPolicy::must_save)})), plain)) << i;
    EXPECT_TRUE(at::equal(gradient(with({.budget = 1.0})), plain)) << i;
    const BudgetGuard guard(1.0);
    for (int step = 0; step < 5; ++step)
      EXPECT_TRUE(at::equal(gradient(checkpointed), plain)) << i << ", step " << step;
  }
}

TEST(Selection, CastsOfWeightsAreCachedInOneRunAndNotInTheOther) {
  const at::Tensor x = torch::randn({16, 16}, torch::requires_grad()),
                   w = torch::randn({16, 16}, torch::requires_grad());
  const auto f = [&](const at::Tensor& y) { return y.sin().mm(w); };
  const auto gradient = [&](const Call& call) {
    const amp::AutocastGuard cast(at::kCPU, at::kBFloat16);
    return torch::autograd::grad({call(f, call(f, x)).to(at::kFloat).sum()}, {w})[0];
  };
  for (const double fraction : {0.0, 0.5, 1.0})
    EXPECT_TRUE(at::equal(gradient(with({.budget = fraction})), gradient(plainly))) << fraction;
}

TEST(Selection, WhatIsModifiedInPlaceIsComputedAgain) {
  const at::Tensor x = torch::randn({8, 8}, torch::requires_grad());
  const auto f = [](const at::Tensor& y) { return y.sin().mul_(2).add_(1).cos(); };
  const at::Tensor plain = torch::autograd::grad({f(x).sum()}, {x})[0];
  const at::Tensor loss = checkpoint({.policy = always(CheckpointPolicy::must_save)}, f, x).sum();
  EXPECT_TRUE(at::equal(torch::autograd::grad({loss}, {x}, {}, true)[0], plain));
  EXPECT_TRUE(at::equal(torch::autograd::grad({loss}, {x})[0], plain));
}

TEST(Selection, WhatIsModifiedInPlaceAfterTheRegionIsComputedAgain) {
  const at::Tensor x = torch::randn({8, 8}, torch::requires_grad());
  const auto f = [](const at::Tensor& y) {
    const at::Tensor z = y * 2;
    return std::make_pair(z, (z + 1).sin());  // nobody saves z for backward
  };
  const auto gradient = [&](std::pair<at::Tensor, at::Tensor> results) {
    results.first.mul_(3);
    return torch::autograd::grad({results.first.sum() + results.second.sum()}, {x})[0];
  };
  const at::Tensor plain = gradient(f(x));
  EXPECT_TRUE(at::equal(gradient(checkpoint({.policy = always(CheckpointPolicy::must_save)}, f, x)), plain));
  EXPECT_TRUE(at::equal(gradient(checkpoint({.budget = 1.0}, f, x)), plain));
}

TEST(Selection, WhatBackwardWritesOverIsNoticed) {
  const at::Tensor x = torch::randn({4, 9}, torch::requires_grad()), target = torch::randint(9, {4}, at::kLong);
  const auto loss_of = [&](const at::Tensor& logits, bool overwrite) {
    return bellows::nn::softmax_cross_entropy(logits, target, {.overwrite_logits = overwrite});
  };
  const auto alone = [&](const at::Tensor& y) { return loss_of(y * 2, true); };
  const auto shared = [&](const at::Tensor& y) {
    const at::Tensor logits = y * 2, squares = logits.square().sum();
    return squares + loss_of(logits, true);
  };
  const at::Tensor plain = torch::autograd::grad({loss_of(x * 2, false)}, {x})[0];
  const CheckpointOptions keeps{.policy = always(CheckpointPolicy::must_save)};
  const auto pass = [&](const at::Tensor& loss) { return torch::autograd::grad({loss}, {x}, {}, true)[0]; };
  const at::Tensor computed = checkpoint(alone, x), kept = checkpoint(keeps, alone, x);
  EXPECT_TRUE(at::equal(pass(kept), plain));
  EXPECT_THAT(message_of([&] { pass(kept); }), HasSubstr("inplace operation"));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(pass(computed), plain)) << i;
  for (const auto& options : {CheckpointOptions{}, keeps})
    EXPECT_THAT(message_of([&] { checkpoint(options, shared, x).backward(); }), HasSubstr("inplace operation"));
}

TEST(Selection, InferenceModeInsideIsAsWithout) {
  const at::Tensor x = torch::randn({8}, torch::requires_grad());
  const auto f = [](const at::Tensor& y) {
    at::Tensor constant;
    {
      const c10::InferenceMode guard;
      constant = y.detach().exp().sin();
    }
    return y.sin() * constant.clone();
  };
  const at::Tensor plain = torch::autograd::grad({f(x).sum()}, {x})[0];
  for (const double fraction : {0.0, 1.0})
    EXPECT_TRUE(at::equal(torch::autograd::grad({checkpoint({.budget = fraction}, f, x).sum()}, {x})[0], plain));
}

TEST(Selection, OtherOperatorsAreAnError) {
  const at::Tensor x = torch::randn({8, 8}, torch::requires_grad()) * 1;
  int runs = 0;
  const auto f = [&](const at::Tensor& y) { return (++runs > 1 ? y.cos() : y.sin()).exp(); };
  const at::Tensor loss = checkpoint({.policy = save_products}, f, x).sum();
  EXPECT_THAT(message_of([&] { loss.backward(); }), AllOf(HasSubstr("aten::cos"), HasSubstr("aten::sin")));
  EXPECT_TRUE(at::equal(torch::autograd::grad({x.sum()}, {x})[0], torch::ones({8, 8})));
}

TEST(Selection, OffloadGoesThroughTheGuardsAround) {
  const at::Tensor x = torch::randn({64, 48}, torch::requires_grad());
  const auto tensors = [&](CheckpointPolicy policy) {
    const OffloadGuard guard({.min_bytes = 1});
    Blocks model(1);
    const auto rule = [policy](const CheckpointOp& op) {
      return op.name == "aten::addmm" ? policy : CheckpointPolicy::must_recompute;
    };
    const at::Tensor loss = model.forward(x * 1, with({.policy = rule})).sum();
    guard.wait();
    const int64_t count = guard.stats().tensors;
    loss.backward();
    return count;
  };
  EXPECT_EQ(tensors(CheckpointPolicy::must_recompute), 1);  // the input
  EXPECT_EQ(tensors(CheckpointPolicy::must_save), 1);
  EXPECT_EQ(tensors(CheckpointPolicy::offload), 3);
}

TEST(Budget, HoldsItsBytes) {
  tap::install_cpu_allocator();
  const at::Tensor x = torch::randn({256, 48});
  Blocks model(6);
  model.forward(x, plainly).sum().backward();
  const auto kept_bytes = [&](const Call& call) {
    const int64_t before = tap::cpu_allocation_counters().current_bytes;
    const at::Tensor loss = model.forward(x, call).sum();
    const int64_t kept = tap::cpu_allocation_counters().current_bytes - before;
    loss.backward();
    return kept;
  };
  const int64_t least = kept_bytes(checkpointed), most = kept_bytes(plainly);
  for (const double fraction : {0.0, 0.4, 0.7}) {
    const BudgetGuard guard(fraction);
    for (int step = 0; step < 6; ++step) {
      const int64_t kept = kept_bytes(checkpointed);
      EXPECT_LE(kept - least, fraction * static_cast<double>(most) + 6 * 16384) << fraction << " " << step;
      if (fraction > 0) {
        EXPECT_GT(kept - least, 0.5 * fraction * static_cast<double>(most)) << fraction << " " << step;
      }
    }
    const BudgetReport report = guard.report();
    EXPECT_NEAR(static_cast<double>(report.activation_bytes), static_cast<double>(most),
                0.1 * static_cast<double>(most));
    EXPECT_LE(report.kept_bytes, fraction * static_cast<double>(report.activation_bytes));
    EXPECT_GT(report.kept_seconds, 0);  // something is always needed by nobody
    EXPECT_LT(report.kept_seconds, report.operator_seconds);
  }
  const int64_t target = most / 3;
  const BudgetGuard guard(BudgetOptions{.target_bytes = target});
  EXPECT_LT(kept_bytes(checkpointed) - least, 6 * 16384);  // measures
  for (int step = 0; step < 3; ++step) {
    const int64_t kept = kept_bytes(checkpointed) - least;
    EXPECT_LE(kept, target + 6 * 16384);
    EXPECT_GT(kept, target / 2);
  }
  // A policy of the region's own is not the guard's business.
  EXPECT_LT(kept_bytes(with({.policy = always(CheckpointPolicy::must_recompute)})) - least, 6 * 16384);
}

}  // namespace bellows::recompute::testing
