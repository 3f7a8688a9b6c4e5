#include "bellows/advice/findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "bellows/system/file.h"

namespace bellows::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A step of 100 ms without any finding: 90 ms for convolutions, which compute limits, and 4 ms for the optimizer.
RecipeProfile quiet_profile() {
  RecipeProfile profile;
  profile.recipe.batch_size = profile.batch_size = 32;
  profile.parameters = 10;
  profile.machine.hardware_threads = 4;
  profile.machine.memory_available_bytes = int64_t{8} << 30;
  inspect::StepProfile& step = profile.step;
  step.peaks = {.fp32_flops = 1e11, .bytes_per_second = 1e10, .call_s = 1e-6};
  step.steps = 1;
  step.step_s = 0.1;
  step.phases = {{"load", 0.001}, {"forward", 0.03}, {"backward", 0.06}, {"optimizer", 0.004}, {"", 0.005}};
  step.ops = {{.op = "aten::convolution",
               .phase = "forward",
               .dtype = at::kFloat,
               .calls = 20,
               .flops = 2e9,
               .bytes = 1e7,
               .seconds = 0.03},
              {.op = "aten::convolution_backward",
               .phase = "backward",
               .backward = true,
               .dtype = at::kFloat,
               .calls = 20,
               .flops = 4e9,
               .bytes = 2e7,
               .seconds = 0.06},
              {.op = "aten::_fused_sgd_",
               .phase = "optimizer",
               .dtype = at::kFloat,
               .calls = 1,
               .bytes = 3e7,
               .seconds = 0.004}};
  return profile;
}

/// The finding of this name.
/// Throws: c10::Error if there is none
Finding finding_of(const RecipeProfile& profile, const std::string& name) {
  const std::vector<Finding> findings = findings_of(profile);
  const auto found = std::ranges::find(findings, name, &Finding::name);
  TORCH_CHECK(found != findings.end(), "no finding ", name);
  return *found;
}

TEST(Findings, AQuietProfileHasNone) {
  EXPECT_THAT(findings_of(quiet_profile()), IsEmpty());
}

TEST(Findings, LoadingBetweenStepsMovesToWorkers) {
  RecipeProfile profile = quiet_profile();
  profile.recipe.num_workers = 0;
  profile.step.phases[0].seconds = 0.4, profile.step.step_s = 0.5;
  profile.loader.cpu_share = 0;  // waits for a disk
  Finding finding = finding_of(profile, "slow_loader");
  EXPECT_THAT(finding.text, HasSubstr("A step waits 400 ms for data, 80 % of its time."));
  EXPECT_THAT(finding.settings, ElementsAre("num_workers=-1", "prefetch=4"));
  EXPECT_DOUBLE_EQ(finding.gain, 5);  // 4 workers load in 100 ms, as long as the rest takes
  profile.loader.cpu_share = 1;       // decodes images on the cores of the step
  EXPECT_DOUBLE_EQ(finding_of(profile, "slow_loader").gain, 2.5);
  EXPECT_EQ(profile.step.limit(), inspect::Limit::loading);
}

TEST(Findings, ALoaderWithWorkersUsesTheAdviceOfItsReport) {
  RecipeProfile profile = quiet_profile();
  profile.step.phases[0].seconds = 0.05;
  profile.recipe.num_workers = 2;
  const Finding finding = finding_of(profile, "slow_loader");
  EXPECT_THAT(finding.text, HasSubstr(profile.loader.advice().sentence));
  EXPECT_LE(finding.gain, 2);
}

TEST(Findings, HostOverheadCallsForALargerBatch) {
  RecipeProfile profile = quiet_profile();
  profile.step.phases[4].seconds = 0.055, profile.step.step_s = 0.15;
  const Finding finding = finding_of(profile, "small_batch");
  EXPECT_THAT(finding.settings, ElementsAre("batch_size=128"));
  EXPECT_NEAR(finding.gain, 4 * 0.15 / (0.055 + 4 * 0.095), 1e-9);
}

TEST(Findings, ContiguousConvolutionsCallForChannelsLast) {
  RecipeProfile profile = quiet_profile();
  profile.step.convolutions = {.contiguous_calls = 40, .contiguous_seconds = 0.05};
  const Finding finding = finding_of(profile, "contiguous_convolutions");
  EXPECT_THAT(finding.text,
              HasSubstr("40 convolutions per step read contiguous images and take 50 ms, 50 % of the step."));
  EXPECT_THAT(finding.settings, ElementsAre("channels_last=true"));
  EXPECT_NEAR(finding.gain, 0.1 / 0.095, 1e-9);
  profile.recipe.channels_last = true;
  EXPECT_THAT(findings_of(profile), IsEmpty());
}

TEST(Findings, AnUnfusedOptimizerIsFused) {
  RecipeProfile profile = quiet_profile();
  profile.recipe.optimizer_impl = "loop";
  profile.step.phases[3].seconds = 0.02;
  const Finding finding = finding_of(profile, "unfused_optimizer");
  EXPECT_THAT(finding.text, HasSubstr("calls 1 operators for 10 parameters and takes 20 ms, 20 % of the step."));
  EXPECT_THAT(finding.settings, ElementsAre("optimizer_impl=fused"));
  EXPECT_NEAR(finding.gain, 0.1 / 0.09, 1e-9);
}

TEST(Findings, RecomputationIsNeedlessOnlyIfItsResultsFit) {
  RecipeProfile profile = quiet_profile();
  profile.recipe.recompute = "blocks";
  profile.step.memory.emplace();
  profile.step.recomputation = {.calls = 12, .seconds = 0.02, .bytes = 1 << 20};
  const Finding finding = finding_of(profile, "needless_recomputation");
  EXPECT_THAT(finding.text, HasSubstr("grows by at most 1.0 MiB"));
  EXPECT_THAT(finding.settings, ElementsAre("recompute=none"));
  EXPECT_NEAR(finding.gain, 1.25, 1e-9);
  profile.machine.memory_available_bytes = 1 << 20;
  EXPECT_THAT(findings_of(profile), IsEmpty());
}

TEST(Findings, Bf16IsRecommendedWhereItIsFaster) {
  RecipeProfile profile = quiet_profile();
  profile.step.peaks.bf16_flops = 4e11;
  const Finding finding = finding_of(profile, "fp32_matmuls");
  EXPECT_THAT(finding.settings, ElementsAre("precision=bf16"));
  EXPECT_NEAR(finding.gain, 1 / 0.7, 1e-9);  // at most the expected effect of the technique
  profile.step.peaks.bf16_flops = 1.2e11;
  EXPECT_THAT(findings_of(profile), IsEmpty());
}

TEST(Findings, SwappingCallsForLessMemory) {
  RecipeProfile profile = quiet_profile();
  profile.step.major_faults = 250;
  const Finding finding = finding_of(profile, "swapping");
  EXPECT_THAT(finding.text, HasSubstr("reads 250 pages of memory from a disk"));
  EXPECT_THAT(finding.settings, ElementsAre("batch_size=16", "gradient_accumulation_steps=2"));
  EXPECT_EQ(finding.gain, 0);
}

TEST(Findings, PageFaultsCallForAllocatorReuse) {
  RecipeProfile profile = quiet_profile();
  profile.step.minor_faults = 80000;  // 20 ms
  const Finding finding = finding_of(profile, "page_faults");
  EXPECT_THAT(finding.settings, ElementsAre("allocator_reuse=true"));
  EXPECT_NEAR(finding.gain, 1.25, 1e-9);
}

TEST(Findings, SynchronizationsNameTheirCallSites) {
  RecipeProfile profile = quiet_profile();
  profile.recipe.train_metrics = "sync";
  profile.step.syncs = {{"aten::item", "reads a value on the host", "loop (train+0x10)", 3},
                        {"aten::nonzero", "its shape depends on data", "", 1}};
  const Finding finding = finding_of(profile, "synchronizations");
  EXPECT_THAT(finding.text, HasSubstr("4 times per step"));
  EXPECT_THAT(finding.places, ElementsAre("aten::item reads a value on the host at loop (train+0x10)",
                                          "aten::nonzero its shape depends on data"));
  EXPECT_THAT(finding.settings, ElementsAre("train_metrics=device"));
  profile.recipe.train_metrics = "device";  // the second call is that of the training loop, which reads only on a CPU
  EXPECT_THAT(finding_of(profile, "synchronizations").text, HasSubstr("3 times per step"));
}

TEST(Findings, CopiesAreDividedByKind) {
  RecipeProfile profile = quiet_profile();
  profile.step.copies = {
      {.op = "aten::clone", .module = "attention", .sizes = "8×64", .calls = 2, .bytes = 1e6, .seconds = 0.02},
      {.op = "aten::clone",
       .site = "f (a+0x1)",
       .sizes = "1×8×4×4",
       .images = true,
       .calls = 1,
       .bytes = 1e6,
       .seconds = 0.05}};
  const Finding permuted = finding_of(profile, "copies_after_permute");
  EXPECT_THAT(permuted.places, ElementsAre("aten::clone of 8×64, module attention"));
  EXPECT_NEAR(permuted.gain, 1.25, 1e-9);
  const Finding images = finding_of(profile, "layout_conversions");
  EXPECT_THAT(images.places, ElementsAre("aten::clone of 1×8×4×4 at f (a+0x1)"));
  EXPECT_NEAR(images.gain, 2, 1e-9);
  EXPECT_EQ(findings_of(profile).front().name, "layout_conversions");  // the larger gain comes first
}

TEST(Findings, OddBatchesAreRoundedUp) {
  RecipeProfile profile = quiet_profile();
  profile.recipe.batch_size = 33;
  profile.step.odd_sizes = {
      {.op = "aten::addmm", .module = "head", .sizes = "33×64 · 64×10", .calls = 1, .flops = 1e9}};
  const Finding finding = finding_of(profile, "odd_sizes");
  EXPECT_THAT(finding.text, HasSubstr("compute 17 % of the FLOPs"));
  EXPECT_THAT(finding.settings, ElementsAre("batch_size=40"));
  EXPECT_THAT(finding.places, ElementsAre("aten::addmm of 33×64 · 64×10, module head"));
}

TEST(Findings, BatchNormNeedsSamples) {
  RecipeProfile profile = quiet_profile();
  profile.step.batch_norms = {{"norm1", 2}, {"norm2", 32}};
  Finding finding = finding_of(profile, "small_norm_batch");
  EXPECT_THAT(finding.text, HasSubstr("from 2 samples"));
  EXPECT_THAT(finding.places, ElementsAre("norm1"));
  EXPECT_THAT(finding.settings, IsEmpty()) << "the batch of the recipe is large enough";
  profile.recipe.batch_size = 2;
  finding = finding_of(profile, "small_norm_batch");
  EXPECT_THAT(finding.settings, ElementsAre("batch_size=16"));
}

TEST(Findings, SettingsFitTheOtherKeysOfTheRecipe) {
  RecipeProfile profile = quiet_profile();
  profile.recipe.recompute = "blocks";
  profile.step.recomputation = {.calls = 10, .seconds = 0.02};
  profile.step.memory.emplace();
  EXPECT_THAT(finding_of(profile, "needless_recomputation").settings, ElementsAre("recompute=none"));
  profile.recipe.activation_memory_budget_mb = 10;  // works only with recomputation
  EXPECT_THAT(finding_of(profile, "needless_recomputation").settings, IsEmpty());
}

TEST(Findings, SettingsAreValid) {
  Recipe recipe;
  for (const char* setting :
       {"num_workers=-1", "prefetch=4", "batch_size=16", "gradient_accumulation_steps=2", "channels_last=true",
        "optimizer_impl=fused", "recompute=none", "precision=bf16", "allocator_reuse=true", "train_metrics=device",
        "image_cache_mb=10", "bucket_mb=2", "gradient_compression=bf16"})
    EXPECT_NO_THROW(recipe.set(setting)) << setting;
}

TEST(Findings, ThePageListsEachRule) {
  const std::string page = read_text_file(std::string(BELLOWS_SOURCE_DIR) + "/docs/profile.md");
  std::set<std::string> names;
  for (const FindingRule& rule : finding_rules()) {
    EXPECT_THAT(page, HasSubstr("| `" + rule.name + "` |"));
    EXPECT_TRUE(names.insert(rule.name).second) << rule.name;
  }
}

TEST(Findings, TheHtmlPageShowsThem) {
  RecipeProfile profile = quiet_profile();
  profile.recipe.optimizer_impl = "loop";
  profile.step.phases[3].seconds = 0.02;
  const std::string page = profile_page(profile, findings_of(profile));
  EXPECT_THAT(page, HasSubstr("<b>The optimizer is not fused</b>"));
  EXPECT_THAT(page, HasSubstr("Expected: 1.11× faster. <code>optimizer_impl: fused</code>"));
  EXPECT_THAT(page, HasSubstr("aten::convolution"));
}

}  // namespace
}  // namespace bellows::train
