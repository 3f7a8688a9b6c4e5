#include "bellows/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "bellows/checkpoint/rng.h"
#include "bellows/io/tensors/torch_file.h"
#include "tests/checkpoint/sample.h"
#include "tests/checkpoint/support.h"

namespace bellows::checkpoint {

namespace {

using testing::AllOf;
using testing::HasSubstr;

bool same_bits(const State& a, const State& b) {
  if (a.model.size() != b.model.size() || a.step != b.step || a.recipe != b.recipe) return false;
  for (size_t i = 0; i < a.model.size(); ++i) {
    if (a.model[i].first != b.model[i].first || !torch::equal(a.model[i].second, b.model[i].second)) return false;
  }
  return true;
}

}  // namespace

TEST(Checkpoint, GivesBackWhatWasSaved) {
  const TemporaryFolder folder;
  const State state = sample_state();
  save(folder / "a.pt", state);
  const State loaded = load(folder / "a.pt");
  expect_equal(loaded, state);
  EXPECT_FALSE(loaded.model[0].second.requires_grad());
}

TEST(Checkpoint, IsAPlainTorchSaveFile) {
  const TemporaryFolder folder;
  save(folder / "a.pt", sample_state());
  const io::PickleValue file = io::torch_load(folder / "a.pt");
  EXPECT_EQ(file.at("format").as_string(), "bellows.checkpoint");
  EXPECT_EQ(file.at("version").as_int(), 2);
  EXPECT_EQ(file.at("environment").as_string(), sample_state().environment);
  EXPECT_EQ(file.at("position").at("batch").as_int(), 17);
  EXPECT_EQ(file.at("model").at("count").as_tensor().item<int64_t>(), 42);
}

/// Written by the last program that wrote version 1; the values are Python's reading of it.
TEST(Checkpoint, FilesOfVersion1AreRead) {
  const std::string path = BELLOWS_SOURCE_DIR "/tests/goldens/checkpoint/version1.pt";
  EXPECT_EQ(io::torch_load(path).at("version").as_int(), 1);
  const State state = load(path);
  EXPECT_EQ(state.environment, "");
  EXPECT_EQ(state.recipe, sample_state().recipe);
  EXPECT_EQ(state.step, 1234567890123);
  EXPECT_EQ(state.batch, 17);
  ASSERT_EQ(state.model.size(), 5u);
  EXPECT_EQ(state.model[0].second.strides(), at::IntArrayRef({90, 1, 18, 3}));
  EXPECT_NEAR(state.model[0].second.to(at::kDouble).sum().item<double>(), 11.2027, 1e-4);
  EXPECT_EQ(state.model[3].second.item<int64_t>(), 42);
  EXPECT_EQ(state.optimizer.size(), 2u);
  EXPECT_TRUE(torch::equal(state.extra.at(0).second, torch::arange(6, at::kDouble).view({2, 3})));
  const TemporaryFolder folder;
  save(folder / "new.pt", state);
  expect_equal(load(folder / "new.pt"), state);
}

TEST(Checkpoint, EveryTruncationIsNoticed) {
  const TemporaryFolder folder;
  save(folder / "a.pt", sample_state());
  const std::string bytes = read_bytes(folder / "a.pt");
  for (size_t size = 0; size < bytes.size(); size += size < 200 ? 1 : 61) {
    write_bytes(folder / "cut.pt", bytes.substr(0, size));
    EXPECT_THROW(load(folder / "cut.pt"), c10::ValueError) << "cut to " << size << " of " << bytes.size() << " bytes";
  }
}

TEST(Checkpoint, NoFlippedBitChangesASilentValue) {
  const TemporaryFolder folder;
  const State state = sample_state();
  save(folder / "a.pt", state);
  const std::string bytes = read_bytes(folder / "a.pt");
  int noticed = 0, harmless = 0;
  for (size_t i = 0; i < bytes.size(); i += 23) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
    write_bytes(folder / "flipped.pt", damaged);
    try {
      ASSERT_TRUE(same_bits(load(folder / "flipped.pt"), state)) << "byte " << i;
      ++harmless;  // padding and fields that nothing depends on
    } catch (const c10::ValueError&) {
      ++noticed;
    }
  }
  EXPECT_GT(noticed, harmless);
}

TEST(Checkpoint, OtherFilesAreRefusedInWords) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { load(folder / "missing.pt"); }),
              AllOf(HasSubstr("missing.pt"), HasSubstr("No such file")));
  io::torch_save(folder / "weights.pt", io::PickleValue(NamedTensors{{"w", torch::ones({2})}}));
  EXPECT_THAT(error_of([&] { load(folder / "weights.pt"); }),
              AllOf(HasSubstr("weights.pt"), HasSubstr("not a checkpoint")));
  io::PickleValue newer = io::PickleValue::dict();
  newer.set("format", "bellows.checkpoint");
  newer.set("version", 3);
  io::torch_save(folder / "newer.pt", newer);
  EXPECT_THAT(error_of([&] { load(folder / "newer.pt"); }), AllOf(HasSubstr("version 3"), HasSubstr("newer Bellows")));
  newer.set("version", 2);
  io::torch_save(folder / "empty.pt", newer);
  EXPECT_THAT(error_of([&] { load(folder / "empty.pt"); }), AllOf(HasSubstr("empty.pt"), HasSubstr("incomplete")));
}

TEST(Checkpoint, RestoresStridesOfTheModel) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 8, 3));
  const Model model = Model::of(conv);
  const at::Tensor handle = conv->weight;
  const at::Tensor weight = torch::randn({8, 3, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast);
  restore_model(model, {{"weight", weight}, {"bias", torch::ones({8})}});
  EXPECT_EQ(conv->weight.strides(), weight.strides());
  EXPECT_TRUE(torch::equal(conv->weight, weight));
  EXPECT_TRUE(handle.is_same(conv->weight)) << "optimizers hold the parameter";
  EXPECT_TRUE(conv->weight.requires_grad());
}

TEST(Checkpoint, AnotherModelsWeightsAreRefusedAndNothingChanges) {
  torch::nn::Linear linear(3, 2);
  const at::Tensor before = linear->weight.detach().clone();
  EXPECT_THROW(restore_model(Model::of(linear), {{"weight", torch::ones({2, 3})}, {"bias", torch::ones({4})}}),
               c10::ValueError);
  EXPECT_TRUE(torch::equal(linear->weight, before));
}

TEST(Rng, GoesOnWhereItWas) {
  at::manual_seed(9);
  torch::randn({5});
  const NamedTensors state = rng_state();
  EXPECT_EQ(state.at(0).first, "cpu");
  const at::Tensor expected = torch::randn({33});
  torch::randn({3});
  set_rng_state(state);
  EXPECT_TRUE(torch::equal(torch::randn({33}), expected));
}

TEST(Rng, MissingDevicesAreSaidAndWrongStatesRefused) {
  const CapturedLog log;
  set_rng_state({{"cuda:77", torch::zeros({16}, at::kByte)}});
  EXPECT_THAT(log.text(), HasSubstr("cuda:77"));
  EXPECT_THROW(set_rng_state({{"cpu", torch::zeros({3}, at::kByte)}}), c10::ValueError);
}

}  // namespace bellows::checkpoint
