#include "bellows/amp/autocast.h"
#include "bellows/tap/argument_tap.h"
#include "bellows/tap/deferral.h"
#include "tests/graph/support.h"

namespace bellows::graph::testing {
namespace {

using ::testing::HasSubstr;

TEST(Region, RecordsFollowsAndPrints) {
  Region region;
  const at::Tensor w = torch::ones({3, 4});
  for (int call = 0; call < 3; ++call) {
    const at::Tensor x = torch::full({2, 4}, call + 1.0);
    at::Tensor y, z;
    region.run([&] {
      y = at::mm(x, w.t());
      z = y.relu().mul(0.5 * call).sum();
      y.add_(1);
    });
    EXPECT_EQ(y.sum().item<double>(), 6 * (4 * (call + 1) + 1));
    EXPECT_EQ(z.item<double>(), 6 * 4 * (call + 1) * 0.5 * call);
  }
  const Explanation said = region.explain();
  EXPECT_EQ(said.calls, 3);
  EXPECT_EQ(said.followed_calls, 2);
  EXPECT_EQ(said.recordings, 1);
  EXPECT_EQ(said.recorded, 6);
  EXPECT_EQ(said.followed, 12);
  const int calls = 3 - Region::eager_calls();
  EXPECT_EQ(said.views, calls);  // t
  EXPECT_EQ(said.deferred, 5 * calls);
  EXPECT_EQ(said.results, 4 * calls);     // mm, relu, mul, sum
  EXPECT_EQ(said.never_seen, 2 * calls);  // relu, mul
  EXPECT_EQ(said.lifted, 1);
  EXPECT_EQ(said.mismatches, 0);
  ASSERT_EQ(region.recordings().size(), 1u);
  region.recordings()[0].program.check();
  const std::string text = region.recordings()[0].to_text();
  EXPECT_THAT(text, HasSubstr("program of 6 instructions, 2 inputs, 1 numbers, 0 outputs"));
  EXPECT_THAT(text, HasSubstr("  %0 f32[4, 3] strides [1, 4] = aten::t(%0)\n"));
  EXPECT_THAT(text, HasSubstr("aten::mul.Scalar(%3, #0)"));
  EXPECT_THAT(text, HasSubstr("aten::add_.Scalar(%2, 1, 1) updates %2 to %6"));
  EXPECT_THAT(said.to_text(), HasSubstr("3 calls, 2 followed completely"));
}

TEST(Region, RecordingsMarkOperatorsThatRunImmediately) {
  Region region;
  const at::Tensor x = torch::ones({2});
  region.run([&] { EXPECT_GT((x * at::rand({2})).sum().item<double>(), 0); });
  const std::string text = region.recordings()[0].to_text();
  EXPECT_THAT(text, HasSubstr(") [now]\n"));
  EXPECT_THAT(text, HasSubstr("  host = aten::_local_scalar_dense("));
  EXPECT_THAT(text, HasSubstr(") [flush]\n"));
}

TEST(Region, ViewsAndAliasesBecomeRealWithTheirStorage) {
  const auto make = [] {
    auto x = std::make_shared<at::Tensor>(torch::arange(12.).view({3, 4}));
    return Program{[x](int call) -> Tensors {
                     const at::Tensor y = *x * (call + 1);
                     const at::Tensor row = y[1], column = y.select(1, 2), flipped = y.t();
                     row.mul_(2);
                     column.copy_(torch::ones({3}) * call);
                     x->select(0, 0).add_(row);
                     return {row, column, flipped, y.expand({2, 3, 4}), y.unfold(1, 2, 1), *x};
                   },
                   [x] { return Tensors{*x}; }};
  };
  EXPECT_GE(expect_same(make).followed_calls, 9);
}

TEST(Region, OddShapesAndAliasedInputs) {
  const auto make = [] {
    const at::Tensor base = torch::randn({4, 6});
    return Program{
        [=](int call) -> Tensors {
          const at::Tensor scalar = torch::full({}, call + 0.5), none = torch::zeros({0, 3});
          const at::Tensor upper = base.slice(0, 0, 3), lower = base.slice(0, 1, 4);  // overlap
          upper.add_(scalar);
          const at::Tensor both = upper * lower;
          const at::Tensor twice = torch::add(base, base);
          const at::Tensor wide = scalar.expand({3, 2}).contiguous();
          return {
              both, twice, wide, none.sum(0), none + 1, scalar * scalar, at::cat({none, none}), scalar.reshape({1})};
        },
        [=] { return Tensors{base}; }};
  };
  EXPECT_GE(expect_same(make).followed_calls, 9);
}

TEST(Region, InputsMayBeViewsOfOneTensorOrNot) {
  Region region;
  const auto add = [&](const at::Tensor& a, const at::Tensor& b) {
    at::Tensor sum;
    region.run([&] {
      a.add_(1);
      sum = a + b;
    });
    return sum.sum().item<double>();
  };
  for (int round = 0; round < 3; ++round) {
    const at::Tensor x = torch::zeros({2}), y = torch::zeros({2});
    EXPECT_EQ(add(x, y), 2);
    EXPECT_EQ(add(x, x), 8);
    EXPECT_EQ(add(x, x.detach()), 12);
  }
  EXPECT_EQ(region.explain().recordings, 2);
  EXPECT_EQ(region.explain().mismatches, 1);
}

TEST(Region, ValuesThatTheHostNeedsAreBarriers) {
  const auto make = [] {
    const at::Tensor x = torch::randn({8});
    return Program{[=](int call) -> Tensors {
      const at::Tensor y = x * (call + 1);
      const double largest = y.max().item<double>();
      const at::Tensor chosen = y.masked_select(y > 0), where = (y > 0.5 * call).nonzero();
      at::Tensor out = torch::empty({0});
      at::add_out(out, y, y);
      const bool equal = at::equal(out, y);
      return {y * largest, chosen.sum(), where.numel() > 3 ? y : x, out.mul_(equal ? 3 : 2),
              std::get<0>(at::_unique(y.round()))};
    }};
  };
  const Explanation said = expect_same(make);
  EXPECT_GT(said.barriers, 10);
  EXPECT_EQ(said.barrier_causes.empty(), false);
}

/// Pending tensors, tensors from outside, and a gradient through the changed tensor.
TEST(Region, SizesThatChangeInPlaceAreNoBarriers) {
  const auto make = [] {
    const at::Tensor w = torch::randn({2, 4}, torch::requires_grad()), x = torch::randn({2, 4});
    return Program{[=](int call) -> Tensors {
      w.mutable_grad() = at::Tensor();
      at::Tensor turned = w * (call + 1);
      turned.transpose_(0, 1);
      at::Tensor squeezed = turned.sub(1).unsqueeze_(1).squeeze_().t_();
      squeezed.unsqueeze_(0).squeeze_(0);
      at::Tensor outside = x.view({4, 2});
      outside.t_();
      (squeezed * outside).sum().backward();
      return {turned, squeezed + 1, outside * 2, w.grad()};
    }};
  };
  for (const bool record_deferred : {false, true}) {
    const Explanation said = expect_same(make, 10, {.record_deferred = record_deferred});
    EXPECT_EQ(said.barriers, 0);
    EXPECT_GE(said.followed_calls, 8);
  }
}

/// Dropped recordings must not keep the values that following compares, nor take them from other recordings.
TEST(Region, ManySizesAreFollowedAfterOthersWereDropped) {
  Region region({.max_recordings = 2});
  const auto twice = [&](int64_t size) {
    at::Tensor sum;
    const at::Tensor x = torch::arange(size);
    region.run([&] { sum = (x * 2 + size).sum(); });
    return sum.item<int64_t>();
  };
  for (int64_t size = 1; size <= 1200; ++size) ASSERT_EQ(twice(size), size * (2 * size - 1)) << size;
  const int64_t recorded = region.explain().recorded;
  for (int round = 0; round < 3; ++round) {
    for (const int64_t size : {1199, 1200}) EXPECT_EQ(twice(size), size * (2 * size - 1));
  }
  EXPECT_EQ(region.explain().recorded, recorded) << "the last two recordings are followed";
}

/// The function turns its input in each second call, so later operators receive other sizes.
TEST(Region, AnInputThatTheFunctionTurnsHasTwoRecordings) {
  const auto make = [] {
    auto x = std::make_shared<at::Tensor>(torch::randn({2, 3}));
    return Program{[x](int) -> Tensors {
      const at::Tensor twice = *x * 2;
      x->t_();
      return {twice, *x + 1};
    }};
  };
  EXPECT_GE(expect_same(make).followed_calls, 8);
}

TEST(Region, FactoriesTakeTheHostsNumbers) {
  Region region;
  for (int call = 0; call < 5; ++call) {
    at::Tensor sum, filled;
    std::vector<float> numbers(3, static_cast<float>(call));
    region.run([&] {
      const at::Tensor mask = torch::tensor(numbers);  // the host writes into it
      filled = torch::empty({2});
      filled.data_ptr<float>()[0] = filled.data_ptr<float>()[1] = static_cast<float>(call);
      sum = mask.sum() + torch::full({}, call * 10.0) + torch::arange(3, 6 + call / 4).sum() + filled.sum();
    });
    EXPECT_EQ(sum.item<double>(), call * 15 + 12 + (call == 4 ? 6 : 0));
  }
  EXPECT_EQ(region.explain().mismatches, 1);  // arange, of another length in the last call
}

TEST(Region, GradModeInferenceModeAndAutocastInside) {
  const auto make = [] {
    torch::nn::Sequential net(torch::nn::Linear(6, 8), torch::nn::ReLU(), torch::nn::Dropout(0.2),
                              torch::nn::Linear(8, 3));
    const at::Tensor x = torch::randn({5, 6});
    return Program{[=](int call) mutable -> Tensors {
      Tensors results;
      {
        const at::NoGradGuard no_grad;
        results.push_back(net->forward(x * call));
      }
      {
        const c10::InferenceMode inference;
        net->eval();
        results.push_back(net->forward(x) + at::matmul(x, x.t()).sum());
        net->train();
      }
      at::Tensor y;
      {
        const amp::AutocastGuard low(at::kCPU, at::kBFloat16);
        y = net->forward(x);
      }
      net->zero_grad();
      y.to(at::kFloat).pow(2).sum().backward();
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
      results.push_back(y);
      for (const auto& parameter : net->parameters()) results.push_back(parameter.grad());
      return results;
    }};
  };
  EXPECT_GE(expect_same(make).followed_calls, 8);
}

TEST(Region, DoubleBackwardAndRetainedGraphs) {
  const auto make = [] {
    const at::Tensor w = torch::randn({3}).requires_grad_();
    return Program{[=](int call) -> Tensors {
      const at::Tensor y = (w * w * w * (call + 1)).sum();
      const at::Tensor first = torch::autograd::grad({y}, {w}, {}, true, true)[0];
      const at::Tensor second = torch::autograd::grad({first.sum()}, {w}, {}, true)[0];
      return {first, second, torch::autograd::grad({y}, {w})[0]};
    }};
  };
  EXPECT_GE(expect_same(make, 5).followed_calls, 4);
}

TEST(Region, ResultsOutliveTheCallAndAreOrdinary) {
  Region region;
  at::Tensor kept = torch::ones({2}), x = torch::ones({2}, at::requires_grad());
  for (int call = 0; call < 4; ++call) {
    at::Tensor loss;
    region.run([&] {
      kept = kept + 1;  // the last call's result is this one's input
      loss = (x * kept).sum();
    });
    loss.backward();  // outside, of a graph made inside
  }
  EXPECT_EQ(kept.sum().item<double>(), 10);
  EXPECT_EQ(x.grad().sum().item<double>(), 28);
  EXPECT_NO_THROW(kept.resize_({5}).data_ptr());
}

struct EmbeddingCounter : tap::ArgumentTap {
  void call(const tap::OpRef& op, std::span<c10::IValue> /*arguments*/) override {
    if (op.name() == "aten::embedding") ++count;
  }
  int count = 0;
};

// Not again when the program runs, even if pending operators run while the tap is installed.
TEST(Region, AnArgumentTapReceivesEachOperatorOnce) {
  const auto counter = std::make_shared<EmbeddingCounter>();
  const at::Tensor table = torch::ones({3, 2}), rows = torch::arange(3);
  Region region;
  for (int call = 0; call < 3; ++call) {
    region.run([&] {
      const tap::ArgumentTapGuard guard(counter);
      const at::Tensor y = at::embedding(table, rows);
      tap::sync();
      EXPECT_EQ(y.sum().item<double>(), 6);
    });
  }
  EXPECT_EQ(counter->count, 3);
}

TEST(Region, OptionsAreChecked) {
  EXPECT_THROW(Region({.max_recordings = 0}), c10::ValueError);
}

}  // namespace
}  // namespace bellows::graph::testing
