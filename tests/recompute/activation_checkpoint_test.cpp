#include "bellows/recompute/activation_checkpoint.h"

#include <c10/util/ScopeExit.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "bellows/amp/autocast.h"
#include "bellows/tap/allocator.h"
#include "bellows/tap/gradient_tap.h"
#include "tests/recompute/support.h"

namespace bellows::recompute::testing {

namespace {

namespace nn = torch::nn;

nn::Sequential dropout_block() {
  return nn::Sequential(nn::Linear(32, 64), nn::GELU(), nn::Dropout(0.3), nn::Linear(64, 32),
                        nn::LayerNorm(nn::LayerNormOptions({32})), nn::Dropout(0.1));
}

/// Blocks one after the other, each called by `call`.
at::Tensor through(const std::vector<nn::Sequential>& blocks, at::Tensor x, const Call& call) {
  for (const auto& block : blocks)
    x = call([block = block](const at::Tensor& y) mutable { return block->forward(y); }, x);
  return x;
}

struct Stack : nn::Module {
  explicit Stack(const std::vector<nn::Sequential>& list) : blocks(list) {
    for (size_t i = 0; i < blocks.size(); ++i) register_module("block" + std::to_string(i), blocks[i]);
    zero_grad();
  }
  std::vector<nn::Sequential> blocks;
};

Stack dropout_stack() {
  torch::manual_seed(1);
  return Stack({dropout_block(), dropout_block(), dropout_block()});
}

/// Writes what a second run must not write again.
struct Counting : nn::Module {
  Counting() {
    register_module("conv", conv);
    register_module("bn", bn);
    register_module("average", average);
    count = register_buffer("count", torch::zeros({}, at::kLong));
    history = register_buffer("history", torch::zeros({3, 8}));
  }
  at::Tensor forward(const at::Tensor& y) {
    const at::Tensor z = bn->forward(conv->forward(y));
    count += 1;
    {
      const at::NoGradGuard guard;
      history[1].mul_(0.5).add_(z.detach().mean({0, 2, 3}));
      history.select(1, 2).copy_(history.select(1, 3) + 1);
    }
    return average->forward(z.relu()).exp();
  }
  nn::Conv2d conv{nn::Conv2dOptions(3, 8, 3)};
  nn::BatchNorm2d bn{8};
  nn::BatchNorm2d average{nn::BatchNormOptions(8).momentum(std::nullopt)};
  at::Tensor count, history;
};

}  // namespace

TEST(Checkpoint, DropoutUnderAutocastAndAccumulationIsTheSameBitForBit) {
  const at::Tensor x = torch::randn({16, 32});
  for (const bool autocast : {false, true}) {
    const auto run = [&](const Call& call) {
      const Stack model = dropout_stack();
      return trained(
          model,
          [&] {
            const amp::AutocastGuard guard(at::kCPU, at::kBFloat16, autocast);
            return through(model.blocks, x, call).pow(2).mean();
          },
          3);
    };
    const auto plain = run(plainly);
    EXPECT_EQ(first_difference(plain, run(checkpointed)), -1) << "autocast " << autocast;
    EXPECT_EQ(first_difference(plain, run([](const Layer& block, const at::Tensor& in) {
                                 return checkpoint({.early_stop = false}, block, in);
                               })),
              -1);
    EXPECT_NE(first_difference(plain, run([](const Layer& block, const at::Tensor& in) {
                                 return checkpoint({.preserve_rng_state = false}, block, in);
                               })),
              -1);
  }
}

TEST(Checkpoint, BackwardInsideTheAutocastGuardIsTheSame) {
  const at::Tensor x = torch::randn({16, 32});
  const auto run = [&](const Call& call) {
    const Stack model = dropout_stack();
    return trained(model, [&] {
      const amp::AutocastGuard guard(at::kCPU, at::kBFloat16);
      through(model.blocks, x, call).pow(2).mean().backward();
      return through(model.blocks, x, call).pow(2).mean();
    });
  };
  EXPECT_EQ(first_difference(run(plainly), run(checkpointed)), -1);
}

TEST(Checkpoint, NestsAndRunsEachLevelOnceMore) {
  const at::Tensor x = torch::rand({4}, torch::requires_grad());
  int inner_runs = 0, outer_runs = 0;
  const auto inner = [&](const at::Tensor& y) { return ++inner_runs, y.exp().sin(); };
  const auto outer = [&](const at::Tensor& y) { return ++outer_runs, checkpoint(inner, y * 2).tanh(); };
  checkpoint(outer, x).sum().backward();
  EXPECT_EQ(outer_runs, 2);
  EXPECT_EQ(inner_runs, 3);  // once in each run of the outer one, once more for its own tensors
}

TEST(Checkpoint, NestedGradientsAreTheSameBitForBit) {
  torch::manual_seed(4);
  const at::Tensor x = torch::randn({16, 32});
  const auto run = [&](int depth) {
    const Stack model = dropout_stack();
    const auto blocks = model.blocks;
    std::function<at::Tensor(const at::Tensor&)> f = [blocks](const at::Tensor& y) {
      return through(blocks, y, plainly);
    };
    for (int i = 0; i < depth; ++i)
      f = [f](const at::Tensor& y) { return checkpoint(f, y.sin()).cos() + torch::rand_like(y); };
    if (depth == 0)
      f = [f](const at::Tensor& y) {
        return (f(y.sin().sin()).cos() + torch::rand_like(y)).cos() + torch::rand_like(y);
      };
    return trained(model, [&] { return f(x.clone().requires_grad_()).sum(); });
  };
  // y.sin() twice, the blocks, then .cos() + noise twice: the same function either way.
  EXPECT_EQ(first_difference(run(0), run(2)), -1);
}

TEST(Checkpoint, ManyInputsAndOutputs) {
  const at::Tensor w = torch::rand({3}, torch::requires_grad());
  const auto f = [](const at::Tensor& a, const std::vector<at::Tensor>& list, const std::optional<at::Tensor>& c,
                    int64_t power, const at::Tensor& twice) {
    auto sum = (a * list[0]).exp() + list[1].pow(power) * twice.sin();
    if (c) sum = sum * c->cos();
    return std::make_tuple(sum.tanh(), std::vector<at::Tensor>{a.exp(), list[0] * list[0]}, power);
  };
  const auto run = [&](bool with) {
    std::vector<at::Tensor> leaves(4);
    for (int i = 0; i < 4; ++i) leaves[i] = (torch::arange(3) * 0.1 + i).requires_grad_();
    const std::vector<at::Tensor> list{leaves[1] * 1, leaves[2]};
    const at::Tensor constant = torch::ones({3}), a = leaves[0] * w;
    const auto all = with ? checkpoint(f, a, list, std::optional(constant), int64_t{3}, a)
                          : f(a, list, std::optional(constant), int64_t{3}, a);
    EXPECT_EQ(std::get<2>(all), 3);
    return torch::autograd::grad({std::get<0>(all).sum() + std::get<1>(all)[0].sum() + std::get<1>(all)[1].sum()},
                                 {leaves[0], leaves[1], leaves[2], w});
  };
  EXPECT_EQ(first_difference(run(false), run(true)), -1);
}

TEST(Checkpoint, SomeOutputsFirstAndOthersLater) {
  const at::Tensor x = torch::rand({4}, torch::requires_grad());
  int runs = 0;
  const auto f = [&runs](const at::Tensor& y) {
    ++runs;
    return std::make_pair(y.exp().sin(), y.tanh().cos());
  };
  const auto [a, b] = checkpoint(f, x);
  const auto ga = torch::autograd::grad({a.sum()}, {x})[0];
  EXPECT_EQ(runs, 2);
  const auto gb = torch::autograd::grad({b.sum()}, {x})[0];
  EXPECT_EQ(runs, 3);
  EXPECT_TRUE(at::allclose(ga, x.exp() * x.exp().cos()));
  EXPECT_TRUE(at::allclose(gb, -x.tanh().sin() * (1 - x.tanh().pow(2))));
}

TEST(Checkpoint, EarlyStopEndsTheSecondRunWhereBackwardHasAll) {
  const at::Tensor x = torch::rand({4}, torch::requires_grad());
  for (const bool early_stop : {true, false}) {
    int begun = 0, ended = 0;
    const auto f = [&](const at::Tensor& y) {
      ++begun;
      at::Tensor z = y.exp();
      try {
        z = z.sin() + 1;
      } catch (const std::exception&) {
        ADD_FAILURE() << "not an error";
      }
      ++ended;
      return z;
    };
    checkpoint({.early_stop = early_stop}, f, x).sum().backward();
    EXPECT_EQ(begun, 2);
    EXPECT_EQ(ended, early_stop ? 1 : 2);
  }
}

/// Saves what it gives back.
struct OwnExp : torch::autograd::Function<OwnExp> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    const at::Tensor y = x.exp();
    context->save_for_backward({y});
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * context->get_saved_variables()[0]};
  }
};

TEST(Checkpoint, EarlyStopInAFunctionThatSavesItsOutputLeavesNothing) {
  tap::install_cpu_allocator();
  const at::Tensor x = torch::rand({1 << 14}, torch::requires_grad());
  int begun = 0, ended = 0;
  const auto step = [&] {
    const auto f = [&](const at::Tensor& y) {
      ++begun;
      const auto on_the_way_out = c10::make_scope_exit([&] { y.detach().sum(); });
      const at::Tensor z = OwnExp::apply(y * 2) + 3;
      ++ended;
      return z;
    };
    return torch::autograd::grad({checkpoint(f, x).sum()}, {x})[0];
  };
  EXPECT_TRUE(at::allclose(step(), 2 * (2 * x).exp()));
  const int64_t before = tap::cpu_allocation_counters().current_bytes;
  for (int i = 0; i < 3; ++i) step();
  EXPECT_EQ(tap::cpu_allocation_counters().current_bytes, before);
  EXPECT_EQ(begun, 8);
  EXPECT_EQ(ended, 4) << "the second run ends before the sum behind the function";
}

TEST(Checkpoint, WithoutGradModeItIsAPlainCall) {
  const at::Tensor x = torch::rand({4}, torch::requires_grad());
  int runs = 0;
  const auto f = [&](const at::Tensor& y) { return ++runs, y.exp(); };
  {
    const at::NoGradGuard guard;
    EXPECT_FALSE(checkpoint(f, x).requires_grad());
  }
  {
    const c10::InferenceMode guard;
    EXPECT_TRUE(checkpoint(f, x).is_inference());
  }
  // With grad mode, but nothing that needs a gradient: nothing is saved.
  EXPECT_FALSE(checkpoint(f, x.detach()).requires_grad());
  EXPECT_EQ(runs, 3);
}

TEST(Checkpoint, RetainedGraphsRunAgainAndKeepNothing) {
  const at::Tensor x = torch::rand({1 << 16}, torch::requires_grad());
  tap::install_cpu_allocator();
  int runs = 0;
  const auto f = [&](const at::Tensor& y) { return ++runs, y.exp().sin().cos().tanh(); };
  const at::Tensor loss = checkpoint(f, x).sum();
  const auto held = [] { return tap::cpu_allocation_counters().current_bytes; };
  const int64_t before = held();
  const auto first = torch::autograd::grad({loss}, {x}, {}, true)[0];
  EXPECT_LT(held() - before, x.nbytes() + 4096);  // the gradient
  const auto second = torch::autograd::grad({loss}, {x})[0];
  EXPECT_EQ(runs, 3);
  EXPECT_TRUE(at::equal(first, second));
}

TEST(Checkpoint, BuffersAreWrittenOnce) {
  torch::manual_seed(5);
  const at::Tensor x = torch::randn({4, 3, 8, 8});
  const auto run = [&](bool with, bool restore) {
    torch::manual_seed(6);
    const auto module = std::make_shared<Counting>();
    auto result = trained(
        *module,
        [&] {
          const auto f = [module](const at::Tensor& y) { return module->forward(y); };
          return (with ? checkpoint({.restore_buffers = restore}, f, x) : f(x)).sum();
        },
        3);
    EXPECT_EQ(module->count.item<int64_t>(), restore ? 3 : 6);
    return std::make_pair(result, module->bn->running_mean._version());
  };
  const auto plain = run(false, true), with = run(true, true);
  EXPECT_EQ(first_difference(plain.first, with.first), -1);
  EXPECT_EQ(plain.second, with.second);
  EXPECT_NE(first_difference(plain.first, run(true, false).first), -1);
}

TEST(Checkpoint, FrozenBatchNormKeepsItsStatistics) {
  torch::manual_seed(5);
  nn::BatchNorm2d bn(3);
  bn->running_mean.fill_(std::nan(""));
  bn->eval();
  const at::Tensor x = torch::randn({2, 3, 4, 4}, torch::requires_grad());
  checkpoint(bn, x).sum().backward();
  EXPECT_TRUE(bn->running_mean.isnan().all().item<bool>());
  EXPECT_TRUE(at::equal(bn->running_var, torch::ones({3})));
}

TEST(Checkpoint, OneRegionServesManyThreads) {
  torch::manual_seed(7);
  const at::Tensor x = torch::randn({64, 64}, torch::requires_grad());
  std::atomic<int> runs{0};
  const auto f = [&runs](const at::Tensor& y) { return ++runs, torch::dropout(y.exp().sin(), 0.5, true).tanh().mm(y); };
  const at::Tensor loss = checkpoint(f, x).sum();
  const auto expected = torch::autograd::grad({loss}, {x}, {}, true)[0];
  std::vector<at::Tensor> results(4);
  std::vector<std::thread> threads;
  threads.reserve(results.size());
  for (auto& result : results) {
    threads.emplace_back([&result, loss, x] {
      for (int i = 0; i < 5; ++i) result = torch::autograd::grad({loss}, {x}, {}, true)[0];
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_TRUE(at::equal(result, expected));
  EXPECT_LE(runs, 2 + 20 * 4);
}

TEST(Checkpoint, ParametersMayStepAsTheirGradientsArrive) {
  const auto run = [&](const Call& call) {
    const Stack model = dropout_stack();
    const at::Tensor x = torch::ones({16, 32});
    std::vector<std::unique_ptr<tap::GradientTap>> taps;
    for (const at::Tensor& parameter : model.parameters()) {
      taps.push_back(std::make_unique<tap::GradientTap>(parameter, [](const at::Tensor& p) {
        const at::NoGradGuard guard;
        at::Tensor(p).sub_(p.grad(), 0.1);
        p.mutable_grad().reset();
      }));
    }
    auto result = trained(
        model, [&] { return through(model.blocks, x, call).pow(2).sum(); }, 2);
    for (const at::Tensor& p : model.parameters()) result.push_back(p.detach().clone());
    return result;
  };
  EXPECT_EQ(first_difference(run(plainly), run(checkpointed)), -1);
}

TEST(Checkpoint, SequentialRunsAllButTheLastSegmentAgain) {
  const at::Tensor x = torch::randn({8, 32});
  std::vector<int> runs(5);
  const auto train = [&](int64_t segments) {
    const Stack model = dropout_stack();
    nn::Linear last(32, 2);
    return trained(model, [&] {
      std::vector<Layer> layers;
      for (size_t i = 0; i < 5; ++i) {
        layers.push_back([&runs, i, block = model.blocks[i % 3]](const at::Tensor& y) mutable {
          ++runs[i];
          return block->forward(y);
        });
      }
      return checkpoint_sequential(layers, segments, x).sum();
    });
  };
  const auto plain = train(1);
  EXPECT_EQ(runs, (std::vector<int>{1, 1, 1, 1, 1}));
  EXPECT_EQ(first_difference(plain, train(2)), -1);
  EXPECT_EQ(runs, (std::vector<int>{3, 3, 2, 2, 2}));
  EXPECT_EQ(first_difference(plain, train(5)), -1);
  EXPECT_EQ(runs, (std::vector<int>{5, 5, 4, 4, 3}));

  nn::Sequential modules(nn::Linear(4, 4), nn::Tanh(), nn::Linear(4, 2));
  const at::Tensor in = torch::randn({3, 4});
  EXPECT_TRUE(at::equal(checkpoint_sequential(modules, 2, in), modules->forward(in)));
  EXPECT_TRUE(at::equal(checkpoint_sequential(*modules, 3, in), modules->forward(in)));
}

TEST(Checkpoint, KeepsTheInputsAndNothingElse) {
  tap::install_cpu_allocator();
  torch::manual_seed(8);
  std::vector<nn::Sequential> blocks;
  blocks.reserve(8);
  for (int i = 0; i < 8; ++i) {
    blocks.emplace_back(nn::Conv2d(nn::Conv2dOptions(16, 16, 3).padding(1)), nn::BatchNorm2d(16), nn::GELU(),
                        nn::Conv2d(nn::Conv2dOptions(16, 16, 3).padding(1)), nn::Sigmoid());
  }
  const at::Tensor x = torch::randn({4, 16, 32, 32}, torch::requires_grad());
  struct Bytes {
    int64_t kept, peak;
  };
  const auto measure = [&](const Call& call) {
    const int64_t before = tap::cpu_allocation_counters().current_bytes;
    tap::reset_cpu_allocation_peak();
    const at::Tensor loss = through(blocks, x, call).sum();
    const int64_t kept = tap::cpu_allocation_counters().current_bytes - before;
    loss.backward();
    return Bytes{kept, tap::cpu_allocation_counters().peak_bytes - before};
  };
  measure(plainly);  // gradients exist from now on
  const Bytes plain = measure(plainly), with = measure(checkpointed);
  // Saved for each block: inputs of two convolutions, of batch norm and of GELU, and the result of the sigmoid, which is
  // the next one's input. Under checkpoint: its input.
  EXPECT_LT(with.kept, 0.27 * plain.kept);
  EXPECT_LT(with.peak, 0.55 * plain.peak);
}

}  // namespace bellows::recompute::testing
