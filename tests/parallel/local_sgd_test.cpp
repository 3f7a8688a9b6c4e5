#include "bellows/parallel/ddp/local_sgd.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "bellows/comm/collectives.h"
#include "tests/parallel/ranks.h"
#include "tests/support/errors.h"

namespace bellows::parallel::testing {
namespace {

using ::testing::HasSubstr;

constexpr double local_rate = 0.1, local_momentum = 0.9;

/// The gradient of rank's loss (w - target)² / 2 at w: each rank pulls elsewhere.
double local_gradient(double w, int step, int rank) {
  return w - (rank + 1) * (1 + 0.1 * step);
}

/// SGD with momentum of `ranks` numbers, by hand: gradients averaged in the first steps, parameters every `period` from there.
std::vector<double> by_hand(int ranks, int steps, const LocalSgdOptions& options) {
  std::vector<double> w(static_cast<size_t>(ranks), 0.5), v(w.size(), 0);
  for (int step = 0; step < steps; ++step) {
    std::vector<double> gradients(w.size());
    double mean = 0;
    for (size_t r = 0; r < w.size(); ++r)
      mean += (gradients[r] = local_gradient(w[r], step, static_cast<int>(r))) / ranks;
    double sum = 0;
    for (size_t r = 0; r < w.size(); ++r) {
      v[r] = local_momentum * v[r] + (step < options.warmup_steps ? mean : gradients[r]);
      sum += w[r] -= local_rate * v[r];
    }
    if (step >= options.warmup_steps && (step - options.warmup_steps) % options.period == 0)
      std::fill(w.begin(), w.end(), sum / ranks);
  }
  return w;
}

/// One rank of the same.
struct LocalTraining {
  at::Tensor w = at::full({3, 2}, 0.5, at::kDouble), single = at::full({5}, 0.5), v = at::zeros({}, at::kDouble);

  bool step(int step, LocalSgd& local, const comm::Group& group) {
    const at::Tensor flat = at::full({1}, local_gradient(w[0][0].item<double>(), step, group.rank()), at::kDouble);
    const GradientBucket bucket{.last = true, .flat = flat, .gradients = {flat}, .parameters = {w}};
    const double gradient = local.gradient_hook()->mean(bucket, group).item<double>();
    v.mul_(local_momentum).add_(gradient);
    w.sub_(v, local_rate);
    single.copy_(w.flatten().narrow(0, 0, 5));
    return local.average();
  }
};

}  // namespace

TEST(LocalSgd, EqualsTheComputationByHand) {
  run_ranks(3, [](const comm::Group& group) {
    for (const LocalSgdOptions& options :
         {LocalSgdOptions{.period = 3, .warmup_steps = 2}, {.period = 1}, {.period = 4, .warmup_steps = 100}}) {
      LocalTraining training;
      LocalSgd local({training.w, training.single}, group, options);
      for (int step = 0; step < 10; ++step) {
        const int64_t since = step - options.warmup_steps;
        EXPECT_EQ(training.step(step, local, group), since >= 0 && since % options.period == 0);
        const double expected = by_hand(3, step + 1, options)[static_cast<size_t>(group.rank())];
        EXPECT_TRUE(at::allclose(training.w, at::full({3, 2}, expected, at::kDouble), 1e-12)) << step;
        EXPECT_TRUE(at::allclose(training.single, at::full({5}, expected), 1e-5)) << step;
      }
      EXPECT_EQ(local.step(), 10);
    }
  });
}

TEST(LocalSgd, GivesEveryRankTheSameBitsAndKeepsTheTensors) {
  std::vector<at::Tensor> averaged(3);
  run_ranks(3, [&](const comm::Group& group) {
    at::Tensor weight = at::arange(72, at::kFloat).view({2, 4, 3, 3}).mul(0.1 + group.rank()).sin();
    weight = weight.contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true);
    const void* data = weight.data_ptr();
    LocalSgd local({weight}, group, {.period = 2});
    EXPECT_TRUE(local.average());
    EXPECT_EQ(weight.data_ptr(), data);
    EXPECT_TRUE(weight.is_contiguous(at::MemoryFormat::ChannelsLast));
    averaged[static_cast<size_t>(group.rank())] = weight.detach();
  });
  at::Tensor expected = at::zeros({2, 4, 3, 3}, at::kDouble);
  for (int rank = 0; rank < 3; ++rank)
    expected += at::arange(72, at::kFloat).view({2, 4, 3, 3}).mul(0.1 + rank).sin().to(at::kDouble) / 3;
  for (const at::Tensor& weight : averaged) EXPECT_TRUE(weight.equal(averaged[0]));
  EXPECT_TRUE(at::allclose(averaged[0].to(at::kDouble), expected, 1e-6, 1e-7));
}

TEST(LocalSgd, AfterWarmUpGradientsStayOrAreAveragedWithin) {
  run_ranks(2, [](const comm::Group& group) {
    const at::Tensor w = at::zeros({1});
    LocalSgd local({w}, group, {.period = 5, .warmup_steps = 1});
    const auto alone = local.gradient_hook(), within = local.gradient_hook(group);
    EXPECT_EQ(alone->describe(), "local SGD, 1 synchronized steps");
    EXPECT_EQ(within->describe(), "local SGD, 1 synchronized steps, then within world");
    const auto mean = [&](GradientHook& hook) {
      const at::Tensor flat = at::full({1}, 2 * group.rank());
      return hook.mean({.last = true, .flat = flat.to(at::kFloat), .gradients = {}, .parameters = {}}, group)
          .item<double>();
    };
    EXPECT_EQ(mean(*alone), 1);
    EXPECT_FALSE(local.average());
    EXPECT_EQ(mean(*alone), 2 * group.rank());
    EXPECT_EQ(mean(*within), 1);
  });
}

TEST(LocalSgd, GoesOnFromItsState) {
  run_ranks(2, [](const comm::Group& group) {
    LocalTraining training, resumed;
    LocalSgd local({training.w, training.single}, group, {.period = 3, .warmup_steps = 2});
    for (int step = 0; step < 4; ++step) training.step(step, local, group);
    resumed.w.copy_(training.w);
    resumed.v.copy_(training.v);
    LocalSgd later({resumed.w, resumed.single}, group, {.period = 3, .warmup_steps = 2});
    later.restore(local.state());
    for (int step = 4; step < 9; ++step) {
      training.step(step, local, group);
      resumed.step(step, later, group);
    }
    EXPECT_TRUE(resumed.w.equal(training.w));
  });
}

TEST(LocalSgd, RefusesOptionsAndStatesThatDoNotFit) {
  run_ranks(1, [](const comm::Group& group) {
    const std::vector<at::Tensor> parameters = {at::zeros({1})};
    EXPECT_THAT(message_of([&] { LocalSgd({}, group); }), HasSubstr("expected parameters"));
    EXPECT_THAT(message_of([&] { LocalSgd(parameters, group, {.period = 0}); }), HasSubstr("a period of at least 1"));
    EXPECT_THAT(message_of([&] { LocalSgd(parameters, group, {.warmup_steps = -1}); }), HasSubstr("warmup_steps"));
    LocalSgd local(parameters, group);
    EXPECT_THAT(message_of([&] { local.restore({}); }), HasSubstr("got 0 entries."));
    EXPECT_THAT(message_of([&] { local.restore({{"lr", at::zeros({1})}}); }), HasSubstr("the first \"lr\""));
  });
}

}  // namespace bellows::parallel::testing
