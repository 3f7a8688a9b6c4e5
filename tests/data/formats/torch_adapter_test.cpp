#include <torch/torch.h>

#include "tests/data/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::HasSubstr;

/// 20 examples: data [2, 3] filled with the index, target [index % 3]. Counts its copies; one copy must not be used by
/// two threads.
class Squares : public torch::data::datasets::Dataset<Squares> {
 public:
  explicit Squares(bool scalar_target = false) : scalar_target_(scalar_target) {}
  Squares(const Squares& other)
      : torch::data::datasets::Dataset<Squares>(other), scalar_target_(other.scalar_target_) {}

  torch::data::Example<> get(size_t index) override {
    EXPECT_FALSE(busy_.exchange(true));
    const auto i = static_cast<int64_t>(index);
    torch::data::Example<> example{torch::full({2, 3}, static_cast<double>(i)),
                                   scalar_target_ ? torch::tensor(i % 3) : torch::tensor({i % 3})};
    busy_ = false;
    return example;
  }
  std::optional<size_t> size() const override { return 20; }

 private:
  std::atomic<bool> busy_{false};
  bool scalar_target_;
};

class Endless : public Squares {
 public:
  std::optional<size_t> size() const override { return std::nullopt; }
};

TEST(TorchAdapter, FeedsTheLoaderFromADataset) {
  for (bool scalar : {false, true}) {
    Loader loader = Dataset(from_torch_dataset(Squares(scalar))).shuffle(2).batch(8).threads(4).num_classes(3).loader();
    int64_t seen = 0;
    for (const Batch& batch : loader.epoch(1)) {
      const at::Tensor ids = torch::tensor(batch.ids());
      EXPECT_TRUE(torch::equal(batch["image"], ids.to(torch::kFloat).view({-1, 1, 1}).expand({batch.size(), 2, 3})));
      EXPECT_TRUE(torch::equal(batch["label"], ids.remainder(3)));
      seen += batch.size();
    }
    EXPECT_EQ(seen, 20);
  }
}

TEST(TorchAdapter, TakesMappedDatasets) {
  auto mapped = Squares().map(torch::data::transforms::Normalize<>(1.0, 2.0));
  Loader loader =
      Dataset(from_torch_dataset(std::move(mapped), {.data = "x", .target = "y"})).batch(20).threads(2).loader();
  const Batch batch = *loader.next();
  EXPECT_TRUE(torch::equal(batch["x"].view({20, 6}).select(1, 5), (torch::arange(20).to(torch::kFloat) - 1) / 2));
  EXPECT_TRUE(batch.contains("y"));
}

TEST(TorchAdapter, GivesWhatTorchsOwnLoaderGives) {
  auto theirs = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      Squares().map(torch::data::transforms::Stack<>()), torch::data::DataLoaderOptions().batch_size(6));
  Loader ours = Dataset(from_torch_dataset(Squares())).batch(6).threads(3).loader();
  auto batch = ours.next();
  for (auto& expected : *theirs) {
    ASSERT_TRUE(batch);
    EXPECT_TRUE(torch::equal((*batch)["image"], expected.data));
    EXPECT_TRUE(torch::equal((*batch)["label"], expected.target.squeeze(1)));
    batch = ours.next();
  }
  EXPECT_FALSE(batch);
}

TEST(TorchAdapter, TakesTensorDatasets) {
  const at::Tensor x = torch::randn({5, 4});
  Loader loader = Dataset(from_torch_dataset(torch::data::datasets::TensorDataset(x), {.data = "x"})).loader();
  const Batch batch = *loader.next();
  EXPECT_TRUE(torch::equal(batch["x"], x));
  EXPECT_EQ(batch.tensors().size(), 1u);
}

TEST(TorchAdapter, RefusesADatasetWithoutASize) {
  EXPECT_THAT(error_of([] { from_torch_dataset(Endless()); }), HasSubstr("of known size"));
}

TEST(TorchAdapter, GradientsFlowThroughABatchInAPlainLoop) {
  torch::nn::Linear model(6, 3);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  Loader loader = Dataset(from_torch_dataset(Squares())).batch(20).threads(1).loader();
  double first = 0, last = 0;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    for (const Batch& batch : loader.epoch(epoch)) {
      const auto loss =
          torch::nn::functional::cross_entropy(model->forward(batch["image"].flatten(1) / 20), batch["label"]);
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      (epoch == 0 ? first : last) = loss.item<double>();
    }
  }
  EXPECT_LT(last, first);
}

}  // namespace
}  // namespace bellows::data::testing
