#include "bellows/advice/recipe_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "bellows/advice/findings.h"
#include "bellows/core/seed.h"
#include "tests/train/support.h"

namespace a_users_recipe {

[[gnu::noinline]] double reads_the_mean_loss(const at::Tensor& loss) {
  const double value = loss.item<double>();
  return value + 1;
}

[[gnu::noinline]] at::Tensor stores_another_order(const at::Tensor& x) {
  at::Tensor copy = x.t().contiguous();
  return copy;
}

}  // namespace a_users_recipe

namespace bellows::train {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

/// Peaks of a machine whose bf16 is faster, so that nothing depends on the machine of the test.
constexpr inspect::MachinePeaks test_peaks{
    .fp32_flops = 1e11, .bf16_flops = 4e11, .bytes_per_second = 1e10, .call_s = 1e-6};

RecipeProfileOptions short_run() {
  return {.warm_up_steps = 1, .steps = 2, .peaks = test_peaks};
}

bool has(const std::vector<Finding>& findings, const std::string& name) {
  return std::ranges::find(findings, name, &Finding::name) != findings.end();
}

std::string names_of(const std::vector<Finding>& findings) {
  std::string names;
  for (const Finding& finding : findings) names += finding.name + " ";
  return names;
}

/// Each read waits, like that of a slow disk.
class SlowSource final : public data::Source {
 public:
  explicit SlowSource(data::SourcePtr source) : source_(std::move(source)) {}
  int64_t size() const override { return source_->size(); }
  void read(int64_t index, data::Sample& sample) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(4));
    source_->read(index, sample);
  }
  std::string describe() const override { return "slow samples"; }

 private:
  data::SourcePtr source_;
};

/// A small network on random features, with batches of 16.
Job small_job(const torch::nn::Sequential& net, const Recipe& recipe = digits_recipe()) {
  seed_everything(3);
  const Model model = Model::of(net, "net");
  const data::Dataset data = blobs(320).threads(0);
  return Job{recipe, model, {make_optimizer(recipe, model)}, cross_entropy_loss(model), data};
}

torch::nn::Sequential small_net() {
  return torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Linear(16, 3));
}

TEST(RecipeProfile, NamesASlowLoaderAndWorkersDeliverTheGain) {
  Job job = small_job(small_net());
  job.train = job.train.with_source(std::make_shared<SlowSource>(job.train.source()));
  const data::Dataset slow = job.train;
  const RecipeProfile profile = profile_job(std::move(job), short_run());
  EXPECT_EQ(profile.step.limit(), inspect::Limit::loading);
  EXPECT_EQ(profile.batch_size, 16);
  const std::vector<Finding> findings = findings_of(profile);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].name, "slow_loader") << names_of(findings);
  EXPECT_GT(findings[0].gain, 1.5);
  // Reads wait for 4 ms each. Four workers wait at the same time, on any machine.
  Job faster = small_job(small_net());
  faster.train = slow.threads(4);
  const RecipeProfile after = profile_job(std::move(faster), short_run());
  EXPECT_GT(profile.step.step_s / after.step.step_s, 1.5);
}

TEST(RecipeProfile, NamesTheLineThatReadsTheLoss) {
  Job job = small_job(small_net());
  job.loss = [loss = job.loss](const data::Batch& batch) {
    StepOutput output = loss(batch);
    a_users_recipe::reads_the_mean_loss(output.loss);
    return output;
  };
  const std::vector<Finding> findings = findings_of(profile_job(std::move(job), short_run()));
  const auto found = std::ranges::find(findings, "synchronizations", &Finding::name);
  ASSERT_NE(found, findings.end());
  EXPECT_THAT(found->places, testing::Contains(HasSubstr("a_users_recipe::reads_the_mean_loss")));
}

TEST(RecipeProfile, NamesTheLineThatCopiesAPermutedTensor) {
  Job job = small_job(small_net());
  const at::Tensor large = at::ones({1024, 1024});
  job.loss = [loss = job.loss, large](const data::Batch& batch) {
    for (int i = 0; i < 4; ++i) a_users_recipe::stores_another_order(large);
    return loss(batch);
  };
  const std::vector<Finding> findings = findings_of(profile_job(std::move(job), short_run()));
  const auto found = std::ranges::find(findings, "copies_after_permute", &Finding::name);
  ASSERT_NE(found, findings.end()) << names_of(findings);
  EXPECT_THAT(found->places, testing::Contains(HasSubstr("a_users_recipe::stores_another_order")));
  EXPECT_GT(found->gain, 1);
}

TEST(RecipeProfile, NamesOddSizes) {
  const torch::nn::Sequential net(torch::nn::Linear(8, 1001), torch::nn::Linear(1001, 1001),
                                  torch::nn::Linear(1001, 3));
  const RecipeProfile profile = profile_job(small_job(net), short_run());
  const std::vector<Finding> findings = findings_of(profile);
  EXPECT_TRUE(has(findings, "odd_sizes")) << names_of(findings);
  ASSERT_FALSE(profile.step.odd_sizes.empty());
  EXPECT_THAT(profile.step.odd_sizes[0].sizes, HasSubstr("1001×1001"));
}

TEST(RecipeProfile, FindsTheSettingsOfASlowDigitsRecipe) {
  Recipe recipe = digits_recipe();
  recipe.batch_size = 2;
  const RecipeProfile profile = profile_recipe(recipe, short_run());
  EXPECT_EQ(profile.batch_size, 2);
  EXPECT_GT(profile.step.convolutions.contiguous_calls, 0);
  EXPECT_EQ(profile.step.convolutions.channels_last_calls, 0);
  EXPECT_EQ(profile.step.recomputation.calls, 0);
  ASSERT_TRUE(profile.step.memory);
  EXPECT_GT(profile.step.memory->peak().of(inspect::TensorKind::gradient), 0);
  const std::vector<Finding> findings = findings_of(profile);
  EXPECT_TRUE(has(findings, "small_norm_batch")) << names_of(findings);
}

TEST(RecipeProfile, CountsRecomputedOperators) {
  Recipe recipe = digits_recipe();
  recipe.recompute = "blocks";
  recipe.channels_last = true;
  const RecipeProfile profile = profile_recipe(recipe, short_run());
  EXPECT_GT(profile.step.recomputation.calls, 0);
  EXPECT_GT(profile.step.recomputation.flops, 0);
  EXPECT_GT(profile.step.convolutions.channels_last_calls, 0);
  EXPECT_TRUE(has(findings_of(profile), "needless_recomputation")) << names_of(findings_of(profile));
}

TEST(RecipeProfile, LeavesWeightsAsTrainingDoes) {
  // Instruments change no results: the profile's steps are those of a training run.
  Job job = make_job(digits_recipe());
  const Model model = job.model;
  profile_job(std::move(job), short_run());
  TrainLoop loop(make_job(digits_recipe()));
  loop.run_steps(1 + 2 + 3 + 1 + 2);
  const auto profiled = model.named_parameters(), trained = loop.job().model.named_parameters();
  ASSERT_EQ(profiled.size(), trained.size());
  for (size_t i = 0; i < profiled.size(); ++i)
    EXPECT_TRUE(at::equal(profiled[i].second, trained[i].second)) << profiled[i].first;
}

TEST(RecipeProfile, NeedsACpu) {
  Job job = small_job(small_net());
  job.recipe.device = "cuda";
  EXPECT_THAT(error_of([&] { profile_job(std::move(job), short_run()); }),
              HasSubstr("profile: expected device: cpu, got cuda"));
}

}  // namespace
}  // namespace bellows::train
