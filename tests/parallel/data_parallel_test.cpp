#include "bellows/parallel/data_parallel.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "bellows/amp/autocast.h"
#include "bellows/tap/half_operators.h"
#include "bellows/tap/observer.h"
#include "bellows/tap/weight_casts.h"
#include "tests/parallel/ddp_models.h"
#include "tests/support/errors.h"

namespace bellows::parallel::testing {
namespace {

using ::testing::HasSubstr;

/// tanh(x W₁) W₂ W₂ᵀ, with a buffer that follows the input's mean and weights that may be frozen, tied or double.
class SmallNet final : public Model::Impl {
 public:
  explicit SmallNet(int64_t width) {
    at::Tensor first = at::arange(6 * width, at::kDouble).view({6, width}).mul(0.37).sin();
    at::Tensor second = at::arange(2 * width, at::kDouble).view({width, 2}).mul(0.91).cos();
    parameters_ = {{"first", first.set_requires_grad(true)},
                   {"second", second.set_requires_grad(true)},
                   {"tied", second},
                   {"unused", at::ones({3}, at::kDouble).set_requires_grad(true)}};
  }
  at::Tensor forward(const at::Tensor& x) override {
    if (training_) {
      const c10::NoGradGuard no_grad;
      mean_.lerp_(x.mean().to(at::kDouble), 0.5);
    }
    return x.mm(parameters_[0].second.to(x.scalar_type())).tanh().mm(parameters_[1].second.to(x.scalar_type()));
  }
  NamedTensors named_parameters() const override { return parameters_; }
  NamedTensors named_buffers() const override { return {{"mean", mean_}}; }
  void set_training(bool on) override { training_ = on; }
  bool training() const override { return training_; }
  void to(c10::Device) override {}

 private:
  NamedTensors parameters_;
  at::Tensor mean_ = at::zeros({}, at::kDouble);
  bool training_ = true;
};

Model small_net() {
  return {"small", std::make_shared<SmallNet>(5)};
}

/// Other weights, as a replica has them before it gets the model's.
Model other_net() {
  const Model other = small_net();
  const c10::NoGradGuard no_grad;
  for (at::Tensor& parameter : other.parameters()) parameter.fill_(7);
  return other;
}

DataParallel replicas_of(const Model& model, size_t count) {
  return {model, other_net, std::vector<c10::Device>(count, at::kCPU)};
}

std::vector<at::Tensor> samples(int64_t count) {
  const at::Tensor x = at::arange(count * 6, at::kDouble).view({count, 6}).mul(0.73).sin();
  return {x, x.slice(1, 0, 2).cos()};
}

at::Tensor mean_loss(const Model& model, const std::vector<at::Tensor>& part) {
  return at::mse_loss(model(part[0]), part[1]);
}

at::Tensor sum_loss(const Model& model, const std::vector<at::Tensor>& part) {
  return at::mse_loss(model(part[0]), part[1], at::Reduction::Sum);
}

void expect_same_gradients(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), expected[i].defined()) << i;
    if (!got[i].defined()) continue;
    EXPECT_TRUE(at::allclose(got[i], expected[i], 1e-12, 1e-14)) << i;
  }
}

}  // namespace

TEST(DataParallel, ThirtySamplesOverThreeReplicasGiveTheBatchsGradient) {
  const Model whole = small_net(), model = small_net();
  DataParallel dp = replicas_of(model, 3);
  for (int step = 0; step < 3; ++step) {  // gradients accumulate, weights change: replicas see it
    const at::Tensor expected = mean_loss(whole, samples(30));
    expected.backward();
    const at::Tensor loss = dp.backward(samples(30), mean_loss);
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-14);
    EXPECT_FALSE(loss.requires_grad());
    expect_same_gradients(gradients_of(model), gradients_of(whole));
    const c10::NoGradGuard no_grad;
    for (const Model& each : {whole, model}) each.parameters()[0].sub_(each.parameters()[0].grad(), 0.1);
  }
}

TEST(DataParallel, PartsThatAreNotEqualCountBySamples) {
  for (const int64_t count : {1, 2, 3, 7, 31}) {  // fewer than replicas: some rest
    for (const LossOver over : {LossOver::mean, LossOver::sum}) {
      const auto loss = over == LossOver::mean ? mean_loss : sum_loss;
      const Model whole = small_net(), model = small_net();
      DataParallel dp = replicas_of(model, 4);
      const at::Tensor expected = loss(whole, samples(count));
      expected.backward();
      EXPECT_NEAR(dp.backward(samples(count), loss, {.loss_over = over}).item<double>(), expected.item<double>(),
                  1e-12);
      expect_same_gradients(gradients_of(model), gradients_of(whole));
    }
  }
}

TEST(DataParallel, GivesTheSameBitsEachTime) {
  std::vector<at::Tensor> first;
  for (int round = 0; round < 10; ++round) {
    const Model model = small_net();
    DataParallel dp = replicas_of(model, 3);
    dp.backward(samples(29), mean_loss);
    const auto gradients = gradients_of(model);
    if (round == 0) first = gradients;
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(gradients[i].equal(first[i])) << i;
  }
}

TEST(DataParallel, OneReplicaIsTheModelItself) {
  const Model whole = small_net(), model = small_net();
  DataParallel dp(model, nullptr, {at::kCPU});
  mean_loss(whole, samples(30)).backward();
  dp.backward(samples(30), mean_loss);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(gradients_of(model)[i].equal(gradients_of(whole)[i]));
}

TEST(DataParallel, BuffersAreReplicaZeros) {
  const Model alone = small_net(), model = small_net();
  DataParallel dp = replicas_of(model, 3);
  for (int step = 0; step < 2; ++step) {
    dp.backward(samples(30), mean_loss);
    alone.forward(samples(30)[0].slice(0, 0, 10));
  }
  EXPECT_TRUE(model.named_buffers()[0].second.equal(alone.named_buffers()[0].second));
}

TEST(DataParallel, ForwardKeepsTheOrderAndTheMode) {
  const Model model = small_net();
  DataParallel dp = replicas_of(model, 3);
  model.eval();
  const at::Tensor output = dp.forward(samples(31)[0]);
  EXPECT_TRUE(at::allclose(output, model(samples(31)[0]), 1e-12));
  EXPECT_FALSE(output.requires_grad());
  EXPECT_EQ(model.named_buffers()[0].second.item<double>(), 0);
}

TEST(DataParallel, FrozenParametersGetNoGradient) {
  const Model model = small_net();
  DataParallel dp = replicas_of(model, 3);
  model.parameters()[0].set_requires_grad(false);
  dp.backward(samples(9), mean_loss);
  EXPECT_FALSE(model.parameters()[0].grad().defined());
  EXPECT_TRUE(model.parameters()[1].grad().defined());
}

TEST(DataParallel, TheSeedScalesGradientsAndNotTheLoss) {
  const Model plain = small_net(), scaled = small_net();
  const double loss = replicas_of(plain, 3).backward(samples(30), mean_loss).item<double>();
  EXPECT_EQ(replicas_of(scaled, 3).backward(samples(30), mean_loss, {.gradient = at::full({}, 1024.0)}).item<double>(),
            loss);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE((gradients_of(scaled)[i] / 1024).equal(gradients_of(plain)[i]));
}

TEST(DataParallel, AutocastAndTapsHoldOnTheReplicasThreads) {
  struct Threads final : tap::Observer {
    void before(const tap::OpEvent& event) override {
      const std::lock_guard lock(mutex);
      if (event.name == "aten::tanh") forward.insert(std::this_thread::get_id());
      if (event.name == "aten::tanh_backward") backward.insert(std::this_thread::get_id());
    }
    std::mutex mutex;
    std::set<std::thread::id> forward, backward;
  };
  const Model model = small_net();
  DataParallel dp = replicas_of(model, 3);
  const auto threads = std::make_shared<Threads>();
  std::atomic<int> low = 0;
  {
    const tap::ObserverGuard watch(threads);
    const amp::AutocastGuard guard(at::kCPU, at::kBFloat16);
    dp.backward(samples(30), [&](const Model& replica, const std::vector<at::Tensor>& part) {
      const at::Tensor output = replica(part[0].to(at::kFloat));
      low += output.scalar_type() == at::kBFloat16;
      return at::mse_loss(output.to(at::kDouble), part[1]);
    });
  }
  EXPECT_EQ(low, 3);
  EXPECT_GE(threads->forward.size(), 1u);
  EXPECT_FALSE(threads->forward.contains(std::this_thread::get_id()));
  EXPECT_EQ(threads->backward, threads->forward);  // each replica's backward runs beside the others'
}

TEST(DataParallel, AutocastInFp16HoldsOnTheReplicasThreads) {
  const Model model = small_net();
  DataParallel dp = replicas_of(model, 3);
  std::atomic<int> half = 0, casts_once = 0, fast_half = 0;
  const amp::AutocastGuard guard(at::kCPU, at::kHalf);
  dp.backward(samples(30), [&](const Model& replica, const std::vector<at::Tensor>& part) {
    const at::Tensor output = replica(part[0].to(at::kFloat));
    half += output.scalar_type() == at::kHalf;
    casts_once += tap::WeightCastGuard::active();
    fast_half += tap::FastHalfGuard::active();
    return at::mse_loss(output.to(at::kDouble), part[1]);
  });
  EXPECT_EQ(half, 3);
  EXPECT_EQ(casts_once, 3);
  EXPECT_EQ(fast_half, 3);
}

TEST(DataParallel, ALossThatAsksGetsThePlaceOfItsPart) {
  const Model whole = small_net(), model = small_net();
  DataParallel dp = replicas_of(model, 3);
  mean_loss(whole, samples(31)).backward();
  std::vector<int64_t> begins(3, -1);
  dp.backward(samples(31), [&](const Model& replica, const std::vector<at::Tensor>& part, const BatchPart& place) {
    begins[place.replica] = place.begin;
    EXPECT_TRUE(part[0][0].equal(samples(31)[0][place.begin]));
    return mean_loss(replica, part);
  });
  EXPECT_EQ(begins, (std::vector<int64_t>{0, 11, 21}));
  expect_same_gradients(gradients_of(model), gradients_of(whole));
}

// 40 parameters of 8 bytes have a gradient, one of them under two names. The weights are shared; the buffer has 8 bytes.
TEST(DataParallel, CountsTheBytesThatItExchanges) {
  const Model model = small_net();
  DataParallel dp = replicas_of(model, 3);
  EXPECT_EQ(dp.exchanged().gradients + dp.exchanged().buffers + dp.exchanged().weights, 0);
  for (int step = 0; step < 2; ++step) dp.backward(samples(30), mean_loss);
  EXPECT_EQ(dp.exchanged().gradients, 2 * (3 - 1) * 40 * 8);
  EXPECT_EQ(dp.exchanged().buffers, 2 * (3 - 1) * 8);
  EXPECT_EQ(dp.exchanged().weights, 0);
  dp.backward(samples(2), mean_loss);  // the third replica is idle
  EXPECT_EQ(dp.exchanged().gradients, (2 * (3 - 1) + 1) * 40 * 8);
  dp.forward(samples(30)[0]);
  EXPECT_EQ(dp.exchanged().gradients, (2 * (3 - 1) + 1) * 40 * 8);

  DataParallel alone(model, nullptr, {at::kCPU});
  alone.backward(samples(30), mean_loss);
  EXPECT_EQ(alone.exchanged().gradients + alone.exchanged().buffers, 0);
}

TEST(DataParallel, WhatAReplicaThrowsHasItsName) {
  const Model model = small_net();
  DataParallel dp = replicas_of(model, 3);
  const auto fail_at = [](double first) {
    return [first](const Model& replica, const std::vector<at::Tensor>& part) {
      TORCH_CHECK_VALUE(part[0][0][0].item<double>() != first, "bad sample");
      return mean_loss(replica, part);
    };
  };
  const double first = samples(30)[0][20][0].item<double>();
  EXPECT_THROW(dp.backward(samples(30), fail_at(first)), c10::ValueError);
  EXPECT_EQ(message_of([&] { dp.backward(samples(30), fail_at(first)); }),
            "DataParallel: replica 2 (cpu, samples 20 to 29): bad sample");
  EXPECT_THAT(message_of([&] { dp.forward(samples(30)[0].slice(1, 1)); }),
              HasSubstr("replica 0 (cpu, samples 0 to 9): "));

  // It goes on, and no replica kept a gradient of the step that failed.
  const Model whole = small_net();
  for (at::Tensor& parameter : model.parameters()) parameter.mutable_grad().reset();
  mean_loss(whole, samples(30)).backward();
  dp.backward(samples(30), mean_loss);
  expect_same_gradients(gradients_of(model), gradients_of(whole));
}

TEST(DataParallel, RefusesWhatItCannotSplitOrReplicate) {
  const Model model = small_net();
  DataParallel dp = replicas_of(model, 2);
  const auto message = [&](const std::vector<at::Tensor>& batch) {
    return message_of([&] { dp.backward(batch, mean_loss); });
  };
  EXPECT_THAT(message({}), HasSubstr("expected a batch"));
  EXPECT_THAT(message({at::ones({4, 6}), at::ones({3, 2})}), HasSubstr("got shape [3, 2] and [4, 6]"));
  EXPECT_THAT(message({at::ones({0, 6}), at::ones({0, 2})}), HasSubstr("same number of samples"));
  EXPECT_THAT(message({at::ones({})}), HasSubstr("along dim 0"));
  EXPECT_THAT(message_of([&] {
                dp.backward(samples(4), [](const Model& replica, const auto& part) { return replica(part[0]); });
              }),
              HasSubstr("expected a loss of one number, got shape [2, 2]"));

  const std::vector<c10::Device> two(2, at::kCPU);
  EXPECT_THAT(message_of([&] {
                DataParallel(
                    model, [&] { return model; }, two);
              }),
              HasSubstr("shares the tensor \"first\" with the model"));
  EXPECT_THAT(message_of([&] {
                DataParallel(
                    model, [] { return Model("wide", std::make_shared<SmallNet>(9)); }, two);
              }),
              HasSubstr("expected replica 1 to have \"first\" of shape [6, 5], got \"first\" of shape [6, 9]"));
  EXPECT_THAT(message_of([&] { DataParallel(model, nullptr, two); }), HasSubstr("a function that creates replicas"));
  EXPECT_THAT(message_of([&] { DataParallel(model, small_net, {}); }), HasSubstr("expected devices"));
}

}  // namespace bellows::parallel::testing
