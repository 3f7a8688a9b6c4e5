#include "bellows/amp/master_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace bellows::amp {

namespace {

at::Tensor low_ones(c10::IntArrayRef sizes) {
  return torch::ones(sizes, at::kBFloat16).requires_grad_();
}

torch::optim::SGD sgd(std::vector<at::Tensor> parameters, double lr = 1) {
  return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(lr));
}

}  // namespace

TEST(MasterWeights, SmallUpdatesAddUp) {
  const at::Tensor with = low_ones({4}), without = low_ones({4});
  const MasterWeights masters({{"w", with}});
  torch::optim::SGD optimizer = sgd({with}, 1e-3), bare = sgd({without}, 1e-3);
  masters.attach(optimizer);
  for (int i = 0; i < 100; ++i) {  // 1 - 0.001 rounds to 1 in bf16
    optimizer.zero_grad();
    bare.zero_grad();
    with.sum().backward();
    without.sum().backward();
    masters.take_gradients();
    optimizer.step();
    bare.step();
    masters.write_back();
  }
  EXPECT_EQ(without[0].item<float>(), 1);
  EXPECT_NEAR(masters.state_dict()[0].second[0].item<float>(), 0.9, 1e-5);  // fp32's own rounding
  EXPECT_EQ(with[0].item<float>(), static_cast<float>(c10::BFloat16(0.9f)));
}

TEST(MasterWeights, EqualsTheSameStepsByHand) {
  torch::manual_seed(0);
  const at::Tensor w = torch::randn({5, 3}).to(at::kBFloat16).requires_grad_();
  at::Tensor reference = w.detach().to(at::kFloat).requires_grad_();
  const MasterWeights masters({{"w", w}});
  const auto options = torch::optim::AdamWOptions(0.01);
  torch::optim::AdamW ours(std::vector<at::Tensor>{w}, options), byhand(std::vector<at::Tensor>{reference}, options);
  masters.attach(ours);
  for (int i = 0; i < 10; ++i) {
    const at::Tensor x = torch::randn({7, 5}).to(at::kBFloat16);
    const at::Tensor copy = reference.detach().to(at::kBFloat16).requires_grad_();
    x.mm(copy).pow(2).sum().backward();
    reference.mutable_grad() = copy.grad().to(at::kFloat);
    byhand.step();
    ours.zero_grad();
    x.mm(w).pow(2).sum().backward();
    masters.take_gradients();
    ours.step();
    masters.write_back();
  }
  EXPECT_TRUE(torch::equal(masters.state_dict()[0].second, reference));
  EXPECT_TRUE(torch::equal(w, reference.to(at::kBFloat16)));
}

TEST(MasterWeights, GradientsOfSeveralBatchesAddUpInFp32) {
  const at::Tensor w = low_ones({1});
  const MasterWeights masters({{"w", w}});
  torch::optim::SGD optimizer = sgd({w});
  masters.attach(optimizer);
  const at::Tensor master = optimizer.param_groups()[0].params()[0];
  for (const double gradient : {256.0, 1.0, 1.0}) {  // 256 + 1 rounds to 256 in bf16
    (w * gradient).sum().backward();
    masters.take_gradients();
    EXPECT_FALSE(w.grad().defined());
  }
  EXPECT_EQ(master.grad().item<float>(), 258);
  optimizer.zero_grad();
  EXPECT_FALSE(master.grad().defined());
}

TEST(MasterWeights, SparseGradientsTravel) {
  const at::Tensor table = low_ones({6, 2});
  const MasterWeights masters({{"table", table}});
  torch::optim::SGD optimizer = sgd({table}, 0.5);
  masters.attach(optimizer);
  for (int i = 0; i < 2; ++i) {
    torch::embedding(table, torch::tensor({1, 1, 4}), -1, false, true).sum().backward();
    masters.take_gradients();
  }
  EXPECT_TRUE(optimizer.param_groups()[0].params()[0].grad().is_sparse());
  optimizer.step();
  masters.write_back();
  EXPECT_EQ(table[1][0].item<float>(), -1);
  EXPECT_EQ(table[4][1].item<float>(), 0);
  EXPECT_EQ(table[0][0].item<float>(), 1);
}

TEST(MasterWeights, KeepsGroupsStateAndWhatIsFp32Anyway) {
  const at::Tensor low = low_ones({2}), norm = torch::ones({2}).requires_grad_();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{norm});
  groups.emplace_back(std::vector<at::Tensor>{low},
                      std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(0.25).momentum(0.5)));
  torch::optim::SGD optimizer(groups, torch::optim::SGDOptions(1).momentum(0.5));
  (low.sum() + norm.sum()).backward();
  optimizer.step();  // makes state
  const MasterWeights masters({{"low", low}, {"norm", norm}});
  masters.attach(optimizer);
  EXPECT_TRUE(optimizer.param_groups()[0].params()[0].is_same(norm));
  const at::Tensor master = optimizer.param_groups()[1].params()[0];
  EXPECT_EQ(master.scalar_type(), at::kFloat);
  EXPECT_EQ(optimizer.state().size(), 2u);
  EXPECT_EQ(optimizer.state().count(master.unsafeGetTensorImpl()), 1u);
  EXPECT_EQ(masters.state_dict().size(), 1u);
}

TEST(MasterWeights, TiedWeightsHaveOneMaster) {
  const at::Tensor w = low_ones({2});
  EXPECT_EQ(MasterWeights({{"embedding.weight", w}, {"head.weight", w}}).state_dict().size(), 1u);
}

TEST(MasterWeights, StateGoesIntoMastersAndParameters) {
  const at::Tensor w = low_ones({2});
  MasterWeights masters({{"w", w}});
  masters.load_state_dict({{"w", torch::full({2}, 1.0625 + 1e-5)}});
  EXPECT_EQ(w[0].item<float>(), 1.0625);
  EXPECT_FLOAT_EQ(masters.state_dict()[0].second[0].item<float>(), 1.0625 + 1e-5);
  EXPECT_THROW(masters.load_state_dict({}), c10::ValueError);
  EXPECT_THROW(masters.load_state_dict({{"w", torch::ones({3})}}), c10::ValueError);
  EXPECT_THROW(masters.load_state_dict({{"w", torch::ones({2})}, {"v", torch::ones({2})}}), c10::ValueError);
  EXPECT_EQ(w[0].item<float>(), 1.0625);
}

TEST(MasterWeights, BadInput) {
  const at::Tensor w = low_ones({2}), other = low_ones({2});
  EXPECT_THROW(MasterWeights({{"w", w}}, {torch::ones({3})}), c10::ValueError);
  EXPECT_THROW(MasterWeights({{"w", w}}, {torch::ones({2}, at::kDouble)}), c10::ValueError);
  EXPECT_THROW(MasterWeights({{"w", w}}, {torch::ones({2}), torch::ones({2})}), c10::ValueError);
  const MasterWeights masters({{"w", w}});
  torch::optim::SGD stranger = sgd({other}), own = sgd({w});
  EXPECT_THROW(masters.attach(stranger), c10::ValueError);
  masters.attach(own);
  EXPECT_THROW(masters.attach(own), c10::ValueError);
}

TEST(MasterWeights, WithNothingToHoldEveryCallIsEmpty) {
  const at::Tensor w = torch::ones({2}).requires_grad_();
  const MasterWeights none, fp32({{"w", w}});
  torch::optim::SGD optimizer = sgd({w});
  for (const MasterWeights* masters : {&none, &fp32}) {
    EXPECT_TRUE(masters->empty());
    masters->attach(optimizer);
    masters->take_gradients();
    masters->write_back();
  }
  EXPECT_TRUE(optimizer.param_groups()[0].params()[0].is_same(w));
}

}  // namespace bellows::amp
