#include "bellows/optim/state/state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/core/error.h"
#include "bellows/optim/optimizers.h"
#include "tests/support/errors.h"

namespace bellows::optim {

namespace {

using StateTensors = std::vector<at::Tensor>;
using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(StateTensors)>;

StateTensors state_parameters() {
  at::manual_seed(11);
  StateTensors parameters = {torch::randn({6, 5}),
                             torch::randn({4, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast), torch::randn({7})};
  for (auto& p : parameters) p.requires_grad_(true);
  return parameters;
}

void train(torch::optim::Optimizer& optimizer, StateTensors& parameters, int first, int last) {
  for (int step = first; step < last; ++step) {
    optimizer.step([&] {
      optimizer.zero_grad();
      at::Tensor loss = torch::zeros({});
      for (const auto& p : parameters) loss = loss + (p * (step + 1)).sin().sum();
      loss.backward();
      return loss;
    });
  }
}

template <class Optimizer, class Options>
Make of(Options options) {
  return [options](StateTensors p) { return std::make_unique<Optimizer>(std::move(p), options); };
}

}  // namespace

/// A user's own class: its learning rate shrinks with each step.
struct OwnOptions : torch::optim::OptimizerCloneableOptions<OwnOptions> {
  double lr = 0.1;
  double get_lr() const override { return lr; }
  void set_lr(double value) override { lr = value; }
};

struct OwnOptimizer : torch::optim::Optimizer {
  explicit OwnOptimizer(StateTensors parameters) : Optimizer(std::move(parameters), std::make_unique<OwnOptions>()) {}
  at::Tensor step(LossClosure closure) override {
    at::Tensor loss = closure ? closure() : at::Tensor();
    const c10::NoGradGuard no_grad;
    for (const auto& p : param_groups_[0].params()) p.sub_(p.grad(), get_lr(*this));
    set_lr(*this, 0.9 * get_lr(*this));
    return loss;
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    archive.write("lr", torch::tensor(get_lr(*this), at::kDouble));
  }
  void load(torch::serialize::InputArchive& archive) override {
    at::Tensor lr;
    archive.read("lr", lr);
    set_lr(*this, lr.item<double>());
  }
};

struct NamedMake {
  const char* name;
  Make make;
};
void PrintTo(const NamedMake& m, std::ostream* out) {
  *out << m.name;
}

class StateTest : public testing::TestWithParam<NamedMake> {};

TEST_P(StateTest, GoesOnWithTheSameBits) {
  StateTensors straight = state_parameters(), broken = state_parameters();
  const auto reference = GetParam().make(straight);
  train(*reference, straight, 0, 6);
  NamedTensors saved;
  {
    const auto first = GetParam().make(broken);
    train(*first, broken, 0, 3);
    for (const auto& [name, tensor] : state_dict(*first)) saved.emplace_back(name, tensor.clone());
  }
  const auto second = GetParam().make(broken);
  set_lr(*second, 123);  // the state has to bring the right one
  load_state_dict(*second, saved);
  train(*second, broken, 3, 6);
  EXPECT_EQ(get_lr(*second), get_lr(*reference));
  for (size_t i = 0; i < straight.size(); ++i) EXPECT_TRUE(torch::equal(straight[i], broken[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(
    All, StateTest,
    testing::Values(
        NamedMake{"SGD", of<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true})},
        NamedMake{"AdamW", of<AdamW>(AdamWOptions{.lr = 0.01, .amsgrad = true})},
        NamedMake{"Adam", of<Adam>(AdamOptions{.lr = 0.01, .weight_decay = 0.1})},
        NamedMake{"RMSprop", of<RMSprop>(RMSpropOptions{.lr = 0.01, .momentum = 0.5, .centered = true})},
        NamedMake{"Adagrad", of<Adagrad>(AdagradOptions{.lr = 0.1, .lr_decay = 0.1})},
        NamedMake{"Lion", of<Lion>(LionOptions{.lr = 0.01, .weight_decay = 0.1})},
        NamedMake{"torch_SGD", of<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9))},
        NamedMake{"torch_Adam", of<torch::optim::Adam>(torch::optim::AdamOptions(0.01))},
        NamedMake{"torch_AdamW", of<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01))},
        NamedMake{"torch_RMSprop",
                  of<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true))},
        NamedMake{"torch_Adagrad", of<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1).lr_decay(0.1))},
        NamedMake{"users_own", [](StateTensors p) { return std::make_unique<OwnOptimizer>(std::move(p)); }}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(State, NamesAndStrides) {
  StateTensors parameters = state_parameters();
  SGD sgd(parameters, {.lr = 0.1, .momentum = 0.9});
  train(sgd, parameters, 0, 1);
  const NamedTensors state = state_dict(sgd);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state) names.push_back(name);
  EXPECT_THAT(names,
              testing::ElementsAre("state.0.momentum_buffer", "state.1.momentum_buffer", "state.2.momentum_buffer",
                                   "param_groups.0.lr", "param_groups.0.momentum", "param_groups.0.dampening",
                                   "param_groups.0.weight_decay", "param_groups.0.nesterov"));
  SGD other(state_parameters(), {.lr = 1});
  load_state_dict(other, state);
  EXPECT_EQ(state_dict(other)[1].second.strides(), parameters[1].strides());
  EXPECT_FALSE(state_dict(other)[1].second.is_same(state[1].second));
}

TEST(State, MasterWeightsGoAlong) {
  const auto bf16 = [] {
    StateTensors parameters = state_parameters();
    for (auto& p : parameters) p = p.detach().to(at::kBFloat16).requires_grad_(true);
    return parameters;
  };
  for (const bool archive : {false, true}) {
    StateTensors straight = bf16(), broken = bf16();
    const AdamWOptions options{.lr = 1e-3, .master_weights = true};
    AdamW reference(straight, options), first(broken, options), second(broken, options);
    train(reference, straight, 0, 6);
    train(first, broken, 0, 3);
    if (archive) {
      std::stringstream file;
      torch::save(first, file);
      torch::load(second, file);
    } else {
      load_state_dict(second, state_dict(first));
    }
    EXPECT_EQ(second.master_weight(broken[0]).scalar_type(), at::kFloat);
    EXPECT_FALSE(torch::equal(second.master_weight(broken[0]), broken[0].to(at::kFloat)));
    train(second, broken, 3, 6);
    for (size_t i = 0; i < straight.size(); ++i) {
      EXPECT_TRUE(torch::equal(reference.master_weight(straight[i]), second.master_weight(broken[i]))) << i;
    }
    AdamW plain(broken, {.lr = 1e-3});
    EXPECT_THAT(message_of([&] { load_state_dict(plain, state_dict(first)); }), testing::HasSubstr("master"));
    EXPECT_TRUE(plain.state().empty());
  }
}

TEST(State, LionInArchives) {
  StateTensors ours = state_parameters();
  Lion lion(ours, {.lr = 0.01}), other(ours, {.lr = 0.5});
  train(lion, ours, 0, 2);
  std::stringstream file;
  torch::save(lion, file);
  torch::load(other, file);
  EXPECT_EQ(get_lr(other), 0.01);
  const NamedTensors a = state_dict(lion), b = state_dict(other);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i].second, b[i].second)) << a[i].first;
}

TEST(State, TakesTheTypeOfTheParameters) {
  StateTensors single = state_parameters(), twice;
  for (const auto& p : single) twice.push_back(p.detach().to(at::kDouble).requires_grad_(true));
  AdamW from(single, {.lr = 0.01}), into(twice, {.lr = 0.01});
  train(from, single, 0, 1);
  load_state_dict(into, state_dict(from));
  EXPECT_EQ(state_dict(into)[1].second.scalar_type(), at::kDouble);
  train(into, twice, 1, 2);
}

TEST(State, WhatDoesNotFitIsRefusedAndNothingChanges) {
  StateTensors parameters = state_parameters();
  AdamW adamw(parameters, {.lr = 0.01});
  train(adamw, parameters, 0, 1);
  const NamedTensors state = state_dict(adamw);

  SGD other_class(parameters, {.lr = 0.5});
  EXPECT_THAT(message_of([&] { load_state_dict(other_class, state); }),
              testing::HasSubstr("belongs to another optimizer"));
  EXPECT_EQ(get_lr(other_class), 0.5);
  EXPECT_TRUE(other_class.state().empty());

  StateTensors larger = {torch::randn({6, 6}, torch::requires_grad())};
  AdamW other_shape(larger, {.lr = 0.5});
  EXPECT_THAT(message_of([&] { load_state_dict(other_shape, state); }),
              testing::AllOf(testing::HasSubstr("state.0.exp_avg"), testing::HasSubstr("[6, 5]"),
                             testing::HasSubstr("[6, 6]")));
  EXPECT_EQ(get_lr(other_shape), 0.5);

  NamedTensors cut = state;
  cut.pop_back();
  AdamW incomplete(parameters, {.lr = 0.5});
  EXPECT_THAT(message_of([&] { load_state_dict(incomplete, cut); }), testing::HasSubstr("param_groups.0.amsgrad"));
  OwnOptimizer own_class(parameters);
  EXPECT_THAT(message_of([&] { load_state_dict(own_class, state); }), testing::HasSubstr("archive"));
}

}  // namespace bellows::optim
