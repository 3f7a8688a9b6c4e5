#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bellows/ladder/html_report.h"
#include "bellows/ladder/inference_job.h"
#include "bellows/ladder/inference_ladder.h"
#include "bellows/ladder/json_report.h"
#include "bellows/quant/training/fake_quantizer.h"
#include "bellows/train/resolved_job.h"
#include "tests/ladder/ladder_world.h"

namespace bellows::train {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

namespace {

/// A model whose speed and accuracy follow from its settings. Time passes only while it runs.
struct FakeModel {
  std::function<double(const InferenceSettings&)> ms_per_sample = [](const InferenceSettings&) { return 1.0; };
  std::function<double(const InferenceSettings&)> accuracy = [](const InferenceSettings&) { return 0.9; };
  std::function<double(const InferenceSettings&)> difference = [](const InferenceSettings&) { return 0.01; };
  double clock_s = 0;
  RandomStream random{7};
  std::vector<std::string> evaluated;
};

std::string words_of(const InferenceSettings& settings) {
  return c10::str(settings.inference_mode ? "inference " : "", settings.recipe.channels_last ? "nhwc " : "",
                  settings.recipe.precision, settings.compile ? " compiled" : "", settings.int8 ? " int8" : "",
                  settings.keep_sensitive_layers ? " mixed" : "");
}

class FakeInferenceJob final : public LadderJob {
 public:
  FakeInferenceJob(FakeModel& model, InferenceSettings settings) : model_(model), settings_(std::move(settings)) {}
  int64_t run_steps(int64_t n) override {
    const double jitter = 1 + 0.01 * (model_.random.uniform() - 0.5);
    model_.clock_s += 1e-3 * static_cast<double>(8 * n) * model_.ms_per_sample(settings_) * jitter;
    return 8 * n;
  }
  int64_t steps_per_epoch() const override { return 2; }
  int64_t samples_per_epoch() const override { return 16; }
  double evaluate() override {
    model_.evaluated.push_back(words_of(settings_));
    return model_.accuracy(settings_);
  }
  int64_t take_peak_bytes() override { return settings_.int8 ? 1000 : 4000; }
  int64_t model_bytes() override { return settings_.int8 ? 250 : 1000; }
  double output_difference() override { return model_.difference(settings_); }
  std::string remark() override { return settings_.keep_sensitive_layers ? "1 layer stays" : ""; }

 private:
  FakeModel& model_;
  InferenceSettings settings_;
};

class FakeInferenceJobs final : public InferenceJobs {
 public:
  explicit FakeInferenceJobs(FakeModel& model) : model_(model) {}
  std::unique_ptr<LadderJob> with(const InferenceSettings& settings) override {
    return std::make_unique<FakeInferenceJob>(model_, settings);
  }

 private:
  FakeModel& model_;
};

std::vector<InferenceTechnique> table() {
  Registry<InferenceTechnique> registry("technique");
  register_inference_techniques(registry);
  return {registry.rows().begin(), registry.rows().end()};
}

LadderReport climb(FakeModel& model, bool has_accuracy = true, const LadderOptions& options = {}) {
  FakeInferenceJobs jobs(model);
  std::vector<InferenceTechnique> techniques = table();
  for (InferenceTechnique& technique : techniques) {  // whatever this machine has
    if (technique.name == "bf16") technique.obstacle = {};
  }
  InferenceSubject subject{.model = "digits_resnet", .data = "data/digits", .has_accuracy = has_accuracy};
  subject.start.recipe.model = "digits_resnet";
  return run_inference_ladder(subject, techniques, jobs, options,
                              {.seconds = [&model] { return model.clock_s; }, .stop = {}});
}

/// Each technique halves the time.
double halves(const InferenceSettings& settings) {
  double ms = 1;
  if (settings.inference_mode) ms /= 2;
  if (settings.recipe.channels_last) ms /= 2;
  if (settings.recipe.precision == "bf16") ms /= 2;
  if (settings.compile) ms /= 2;
  if (settings.int8) ms /= 4;  // takes the place of bf16
  return ms;
}

std::vector<std::string> verdicts(const LadderReport& report) {
  std::vector<std::string> words;
  for (const RungResult& rung : report.rungs)
    words.push_back(rung.technique + ": " + std::string(to_string(rung.verdict)));
  return words;
}

const RungResult& rung_named(const LadderReport& report, const std::string& name) {
  for (const RungResult& rung : report.rungs) {
    if (rung.technique == name) return rung;
  }
  throw std::out_of_range(name);
}

Recipe mlp_recipe() {
  Recipe recipe;
  recipe.model = "mlp";
  recipe.data = std::string(BELLOWS_SOURCE_DIR) + "/data/digits";
  return recipe;
}

}  // namespace

TEST(InferenceLadder, KeepsFasterRungsWhoseAccuracyHolds) {
  FakeModel model{.ms_per_sample = halves};
  const LadderReport report = climb(model);
  EXPECT_THAT(verdicts(report), ElementsAre("inference_mode: kept", "channels_last: kept", "bf16: kept",
                                            "compiled: kept", "int8: kept", "mixed_int8: does not apply"));
  EXPECT_EQ(report.options.goal, LadderGoal::inference);
  EXPECT_NEAR(report.speedup.ratio, 32, 0.5);
  EXPECT_NEAR(rung_named(report, "bf16").speedup.ratio, 2, 0.02);
  EXPECT_NEAR(report.plain.step_ms, 8, 0.1) << "a step is a batch of 8";
  EXPECT_NEAR(report.top().step_ms, 0.25, 0.01);
  EXPECT_NEAR(report.top().samples_per_s, 32000, 500);
  EXPECT_NEAR(report.start_step_ms, 8, 0.1);
  EXPECT_DOUBLE_EQ(report.start_step_ms / report.top_step_ms, report.speedup.ratio);
  EXPECT_EQ(report.top().model_bytes, 250);
  EXPECT_DOUBLE_EQ(report.top().memory_over_start, 4);
  EXPECT_EQ(report.plain.title, "eager");
}

TEST(InferenceLadder, DropsAFasterRungThatLosesAccuracy) {
  FakeModel model{.ms_per_sample = halves, .accuracy = [](const InferenceSettings& settings) {
                    return settings.recipe.precision == "bf16" ? 0.88 : 0.9;
                  }};
  const LadderReport report = climb(model);
  const RungResult& bf16 = rung_named(report, "bf16");
  EXPECT_EQ(bf16.verdict, Verdict::less_accurate);
  EXPECT_THAT(bf16.note, HasSubstr("the accuracy falls by 2.00 points, more than 0.5"));
  EXPECT_EQ(rung_named(report, "compiled").verdict, Verdict::kept);
  EXPECT_THAT(model.evaluated, testing::Contains("inference nhwc fp32 compiled")) << "stands on the last kept rung";
  FakeModel again{.ms_per_sample = halves, .accuracy = model.accuracy};
  EXPECT_EQ(rung_named(climb(again, true, {.max_drop = 0.02}), "bf16").verdict, Verdict::kept) << "exactly the bound";
}

TEST(InferenceLadder, MixedInt8IsTriedOnlyIfInt8LosesAccuracy) {
  FakeModel model{.ms_per_sample = halves, .accuracy = [](const InferenceSettings& settings) {
                    return settings.int8 && !settings.keep_sensitive_layers ? 0.5 : 0.9;
                  }};
  const LadderReport report = climb(model);
  EXPECT_EQ(rung_named(report, "int8").verdict, Verdict::less_accurate);
  EXPECT_EQ(rung_named(report, "mixed_int8").verdict, Verdict::kept);
  EXPECT_EQ(rung_named(report, "mixed_int8").note, "1 layer stays");
  FakeModel slow{.ms_per_sample = [](const InferenceSettings& settings) { return settings.int8 ? 2.0 : 1.0; }};
  const LadderReport slower = climb(slow);
  EXPECT_EQ(rung_named(slower, "int8").verdict, Verdict::slower);
  EXPECT_EQ(rung_named(slower, "mixed_int8").verdict, Verdict::does_not_apply);
}

TEST(InferenceLadder, EvaluatesOnlyFasterRungs) {
  FakeModel model;
  const LadderReport report = climb(model);
  EXPECT_THAT(model.evaluated, ElementsAre("fp32"));
  for (const RungResult& rung : report.rungs) EXPECT_FALSE(rung.kept()) << rung.title;
  EXPECT_TRUE(std::isnan(report.speedup.ratio));
}

TEST(InferenceLadder, WithoutAnAccuracyTheOutputsDecide) {
  FakeModel model{.ms_per_sample = halves, .difference = [](const InferenceSettings& settings) {
                    return settings.int8 ? std::nan("") : settings.recipe.precision == "bf16" ? 0.3 : 0.01;
                  }};
  const LadderReport report = climb(model, false);
  EXPECT_TRUE(model.evaluated.empty());
  EXPECT_EQ(rung_named(report, "compiled").verdict, Verdict::kept);
  EXPECT_EQ(rung_named(report, "bf16").verdict, Verdict::less_accurate);
  EXPECT_THAT(rung_named(report, "bf16").note, HasSubstr("the outputs differ by 30 %, more than 20 %"));
  EXPECT_EQ(rung_named(report, "int8").verdict, Verdict::less_accurate) << "NaN never passes";
  EXPECT_TRUE(std::isnan(report.plain.accuracy));
}

TEST(InferenceLadder, AFailingRungIsReportedAndTheLadderContinues) {
  FakeModel model{.ms_per_sample = [](const InferenceSettings& settings) {
    TORCH_CHECK_VALUE(!settings.recipe.channels_last, "no such layout");
    return halves(settings);
  }};
  const LadderReport report = climb(model);
  EXPECT_EQ(rung_named(report, "channels_last").verdict, Verdict::failed);
  EXPECT_EQ(rung_named(report, "channels_last").note, "no such layout");
  EXPECT_EQ(rung_named(report, "compiled").verdict, Verdict::kept);
}

TEST(InferenceLadder, ExpectationsCanDependOnTheMachine) {
  FakeModel model;
  FakeInferenceJobs jobs(model);
  std::vector<InferenceTechnique> techniques = table();
  techniques.resize(1);
  techniques[0].expected_on = [](const Machine& machine) {
    return Expectation{.time_factor = machine.cpu.empty() ? 1.0 : 2.0, .words = "slower here"};
  };
  const LadderReport report = run_inference_ladder({.model = "net", .data = "data"}, techniques, jobs, {},
                                                   {.seconds = [&model] { return model.clock_s; }, .stop = {}});
  EXPECT_EQ(report.rungs[0].expectation, "slower here");
  EXPECT_EQ(report.rungs[0].expected_speed, Effect::costs);
}

TEST(InferenceLadder, RejectsBadOptions) {
  FakeModel model;
  EXPECT_THROW(climb(model, true, {.max_drop = -0.1}), c10::ValueError);
  EXPECT_THROW(climb(model, true, {.max_drop = 1.5}), c10::ValueError);
  EXPECT_THROW(climb(model, true, {.pairs = 2}), c10::ValueError);
}

TEST(InferenceLadder, ReportsAsJsonAndAsAPage) {
  FakeModel model{.ms_per_sample = halves};
  const LadderReport report = climb(model);
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["goal"], "inference");
  EXPECT_EQ(json["max_drop"], 0.005);
  EXPECT_EQ(json["baseline"]["title"], "eager");
  EXPECT_EQ(json["rungs"][4]["model_bytes"], 250);
  EXPECT_EQ(json["rungs"][4]["output_difference"], 0.01);
  EXPECT_EQ(json["rungs"][4]["accuracy"], 0.9);
  EXPECT_FALSE(json["baseline"].contains("time_to_target_s"));
  EXPECT_FALSE(json.contains("target_accuracy"));
  const std::string page = ladder_page(report);
  EXPECT_THAT(page, HasSubstr("bellows ladder --inference"));
  EXPECT_THAT(page, HasSubstr("faster inference"));
  EXPECT_THAT(page, HasSubstr("Time per batch"));
  EXPECT_THAT(page, HasSubstr("static int8"));
  EXPECT_THAT(page, Not(HasSubstr("time to target")));
  EXPECT_THAT(page, Not(HasSubstr("plain libtorch")));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
}

TEST(InferenceJob, RunsAModelWithItsSettings) {
  const InferenceSource source{.load = load_untrained,
                               .start = {.recipe = mlp_recipe()},
                               .evaluation = {.batch_size = 16},
                               .calibration_samples = 32};
  const auto eager = make_inference_job(source, source.start);
  EXPECT_EQ(eager->run_steps(3), 48);
  EXPECT_EQ(eager->samples_per_epoch(), eager->steps_per_epoch() * 16);
  EXPECT_DOUBLE_EQ(eager->output_difference(), 0) << "each load gives the same weights";
  EXPECT_GT(eager->take_peak_bytes(), eager->model_bytes());
  InferenceSettings int8 = source.start;
  int8.inference_mode = int8.compile = int8.int8 = true;
  const auto quantized = make_inference_job(source, int8);
  while (!quantized->settle()) {
  }
  EXPECT_LT(quantized->model_bytes(), 0.3 * static_cast<double>(eager->model_bytes()));
  EXPECT_GT(quantized->output_difference(), 1e-4);
  EXPECT_LT(quantized->output_difference(), 0.1);
}

TEST(InferenceJob, UsesTheRangesOfQuantizationAwareTraining) {
  InferenceSource source{.load = load_untrained,
                         .start = {.recipe = mlp_recipe()},
                         .evaluation = {.batch_size = 16},
                         .calibration_samples = 32};
  source.load = [](const Recipe& recipe) {
    TrainedModel trained = load_untrained(recipe);
    const quant::FakeQuantizer quantizer(trained.model);
    const quant::FakeQuantizerGuard guard(quantizer);
    trained.model.train();
    trained.model.forward(0.01 * torch::ones({4, 1, 8, 8}));  // much smaller than the digits, which saturate
    trained.trained_layers = quantizer.trained_layers();
    return trained;
  };
  InferenceSettings int8 = source.start;
  int8.inference_mode = int8.compile = int8.int8 = true;
  EXPECT_GT(make_inference_job(source, int8)->output_difference(), 0.3);
}

TEST(InferenceJob, UsesExamplesWithoutData) {
  InferenceSource source{.load = load_untrained, .evaluation = {.batch_size = 2}};
  source.start.recipe.model = "resnet18";
  source.start.recipe.image_size = 32;
  InferenceSettings nhwc = source.start;
  nhwc.recipe.channels_last = nhwc.inference_mode = true;
  const auto job = make_inference_job(source, nhwc);
  EXPECT_EQ(job->run_steps(1), 2);
  EXPECT_EQ(job->steps_per_epoch(), 1);
  EXPECT_LT(job->output_difference(), 1e-4);
}

TEST(InferenceJob, RunsTorchScriptFiles) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("inference_net_" + std::to_string(getpid()) + ".pt");
  torch::jit::Module module("Net");
  module.register_parameter("weight", torch::randn({64, 10}).requires_grad_(), false);
  module.define("def forward(self, x):\n  return torch.matmul(x.flatten(1), self.weight)\n");
  module.save(path);
  InferenceSource source{.load = [](const Recipe& recipe) { return load_trained(recipe, ""); },
                         .start = {.recipe = mlp_recipe()},
                         .evaluation = {.batch_size = 4}};
  source.start.recipe.model = path;
  InferenceSettings compiled = source.start;
  compiled.inference_mode = compiled.compile = true;
  const auto job = make_inference_job(source, compiled);
  EXPECT_EQ(job->run_steps(2), 8);
  EXPECT_LT(job->output_difference(), 1e-5);
  EXPECT_EQ(job->model_bytes(), 10 * 64 * 4);
  std::filesystem::remove(path);
}

TEST(InferenceJob, RejectsAModelThatIsQuantizedAlready) {
  InferenceSource source{.load = load_untrained, .start = {.recipe = mlp_recipe()}};
  source.load = [](const Recipe& recipe) {
    TrainedModel trained = load_untrained(recipe);
    trained.quantized = true;
    return trained;
  };
  EXPECT_THROW(make_inference_job(source, source.start), c10::ValueError);
}

}  // namespace bellows::train
