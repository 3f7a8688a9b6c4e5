// Quantization-aware training through the recipe: quantize, quantize_start_step, batch_norm_freeze_step.
#include "bellows/train/step/quantized_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "bellows/train/inference/quantization.h"
#include "tests/support/captured_log.h"
#include "tests/train/inference/support.h"

namespace bellows::train {

namespace {

using testing::HasSubstr;

Recipe quantized_recipe(const std::vector<std::string>& settings = {}) {
  Recipe recipe = digits_recipe();
  recipe.quantize = "int8";
  for (const std::string& setting : settings) recipe.set(setting);
  recipe.validate();
  return recipe;
}

/// The largest relative difference of two courses.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] / b[i] - 1));
  return largest;
}

std::vector<double> compiled_losses(const Recipe& recipe) {
  TrainLoop loop(make_job(recipe));
  loop.run_steps(6);
  const auto start = std::chrono::steady_clock::now();
  while (!loop.is_compiled() && std::chrono::steady_clock::now() - start < std::chrono::seconds(240))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(loop.is_compiled());
  loop.run_steps(8);
  loop.evaluate();
  return loop.take_losses();
}

std::vector<double> resumed_losses(const Recipe& recipe, bool resume, int stop_after) {
  std::vector<double> losses;
  Trainer* running = nullptr;
  Callbacks callbacks;
  callbacks.on_step = [&](const TrainLoop& loop) {
    losses.push_back(loop.last_loss().item<double>());
    if (static_cast<int>(losses.size()) == stop_after) running->request_stop();
  };
  Trainer trainer(recipe, callbacks);
  running = &trainer;
  trainer.resume(resume);
  trainer.fit();
  return losses;
}

}  // namespace

TEST(QuantizedTraining, StartsAtItsStep) {
  const std::vector<double> plain = losses_of(digits_recipe(), 6);
  const std::vector<double> later = losses_of(quantized_recipe({"quantize_start_step=4"}), 6);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(plain[i], later[i]) << "step " << i;
  EXPECT_NE(plain[4], later[4]);
  EXPECT_LT(distance(plain, later), 0.05);
  EXPECT_NE(plain[0], losses_of(quantized_recipe(), 1)[0]);
}

TEST(QuantizedTraining, EvaluatesWithTheSameRanges) {
  const Recipe recipe = quantized_recipe({"quantize_start_step=2"});
  TrainLoop loop(make_job(recipe)), plain(make_job(digits_recipe()));
  loop.run_steps(2);
  plain.run_steps(2);
  EXPECT_EQ(loop.evaluate().loss, plain.evaluate().loss) << "before the start";
  loop.run_steps(3);
  const NamedTensors before = loop.state().extra;
  const Evaluation first = loop.evaluate(), second = loop.evaluate();
  EXPECT_EQ(first.loss, second.loss) << "evaluations do not change ranges";
  Job without = make_job(digits_recipe());
  QuantizedTraining none(without, 1);
  int64_t ranges = 0;
  for (const auto& [name, value] : before) ranges += name.starts_with("quantize.") && name.ends_with("input_range");
  EXPECT_EQ(ranges, 10);
  EXPECT_TRUE(none.state().empty());
}

TEST(QuantizedTraining, ResumesWithIdenticalBits) {
  const TemporaryFolder one, two;
  const auto recipe = [](const TemporaryFolder& folder) {
    Recipe made = quantized_recipe({"quantize_start_step=3", "batch_norm_freeze_step=16", "model=digits_resnet"});
    made.run_folder = folder.path();
    return made;
  };
  const std::vector<double> whole = resumed_losses(recipe(one), false, 0);
  ASSERT_EQ(whole.size(), 24u);
  std::vector<double> parts = resumed_losses(recipe(two), false, 9);
  const std::vector<double> rest = resumed_losses(recipe(two), true, 0);
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(parts, whole);
}

TEST(QuantizedTraining, FreezesBatchNorms) {
  TrainLoop loop(make_job(quantized_recipe({"batch_norm_freeze_step=3", "quantize=none"})));
  const auto mean = [&] {
    for (const auto& [name, buffer] : loop.job().model.named_buffers()) {
      if (name.ends_with("running_mean")) return buffer.clone();
    }
    return at::Tensor();
  };
  loop.run_steps(2);
  const at::Tensor second = mean();
  loop.run_steps(1);
  const at::Tensor third = mean();
  loop.run_steps(2);
  EXPECT_FALSE(second.equal(third));
  EXPECT_TRUE(third.equal(mean()));
}

TEST(QuantizedTraining, CompiledStepsLearnAsPlainOnes) {
  for (const char* model : {"mlp", "digits_resnet"}) {
    const std::vector<std::string> settings{std::string("model=") + model, "lr=0.02", "batch_size=40"};
    const std::vector<double> plain = losses_of(quantized_recipe(settings), 14);
    for (const char* part : {"forward", "step"}) {
      SCOPED_TRACE(c10::str(model, ", compile: ", part));
      Recipe recipe = quantized_recipe(settings);
      recipe.compile = part;
      const std::vector<double> compiled = compiled_losses(recipe);
      EXPECT_LT(distance(compiled, plain), 0.05) << "inputs can be rounded to the next integer";
      EXPECT_EQ(compiled_losses(recipe), compiled) << "two runs differ";
    }
  }
}

TEST(QuantizedTraining, WorksWithOtherKeys) {
  const std::vector<double> plain = losses_of(quantized_recipe(), 4);
  EXPECT_EQ(losses_of(quantized_recipe({"recompute=blocks"}), 4), plain) << "recomputation does not change ranges";
  const TemporaryFolder folder;
  const std::string teacher = trained_weights(folder, "digits_resnet", 3);
  for (const std::vector<std::string>& settings :
       std::vector<std::vector<std::string>>{{"teacher=digits_resnet", "teacher_weights=" + teacher},
                                             {"precision=bf16"},
                                             {"precision=bf16", "amp_level=O2", "optimizer_impl=auto"},
                                             {"channels_last=true"},
                                             {"gradient_accumulation_steps=2"},
                                             {"ema_decay=0.9"},
                                             {"optimizer_in_backward=true", "optimizer_impl=auto"},
                                             {"on_nan=skip"}}) {
    const std::vector<double> losses = losses_of(quantized_recipe(settings), 5);
    SCOPED_TRACE(settings.front());
    EXPECT_TRUE(std::isfinite(losses.back()));
    EXPECT_LT(losses.back(), losses.front());
  }
}

TEST(QuantizedTraining, SkippedStepsDoNotChangeRanges) {
  Job job = make_job(quantized_recipe({"on_nan=skip"}));
  const LossFn loss = job.loss;
  bool bad = false;
  const Model model = job.model;
  job.loss = [&](const data::Batch& batch) {
    StepOutput output = loss(batch);
    if (bad) output.loss = output.loss * NAN;
    return output;
  };
  TrainLoop loop(job);
  const auto ranges = [&] {
    std::vector<at::Tensor> all;
    for (const auto& [name, value] : loop.state().extra) {
      if (name.starts_with("quantize.")) all.push_back(value);
    }
    return all;
  };
  loop.run_steps(2);
  const auto before = ranges();
  bad = true;
  loop.run_steps(1);
  expect_same_bits(ranges(), before);
  EXPECT_EQ(loop.skipped_steps(), 1);
}

TEST(QuantizedTraining, LearnsScales) {
  const std::vector<double> observed = losses_of(quantized_recipe(), 6);
  TrainLoop loop(make_job(quantized_recipe({"quantize_scales=learned"})));
  ASSERT_EQ(loop.job().optimizers.size(), 2u);
  const auto scales = [&] {
    std::vector<at::Tensor> all;
    for (const auto& [name, value] : loop.state().extra) {
      if (name.starts_with("quantize.") && name.ends_with("_step")) all.push_back(value.clone());
    }
    return all;
  };
  loop.run_steps(1);
  const std::vector<at::Tensor> first = scales();
  ASSERT_EQ(first.size(), 20u) << "of weights and inputs of 10 layers";
  loop.run_steps(5);
  const std::vector<at::Tensor> last = scales();
  int changed = 0;  // the gradient of the image's scale can be too small for a change
  for (size_t i = 0; i < first.size(); ++i) changed += !first[i].equal(last[i]);
  EXPECT_GE(changed, 18);
  EXPECT_LT(distance(loop.take_losses(), observed), 0.2);
}

TEST(QuantizedTraining, LearnedScalesResumeWithIdenticalBits) {
  for (const char* optimizer : {"sgd", "adamw"}) {
    SCOPED_TRACE(optimizer);
    const TemporaryFolder one, two;
    const auto recipe = [&](const TemporaryFolder& folder) {
      Recipe made = quantized_recipe(
          {"quantize_scales=learned", "quantize_start_step=3", "lr=0.001", std::string("optimizer=") + optimizer});
      made.run_folder = folder.path();
      return made;
    };
    const std::vector<double> whole = resumed_losses(recipe(one), false, 0);
    std::vector<double> parts = resumed_losses(recipe(two), false, 9);
    ASSERT_EQ(parts.size(), 9u);
    const std::vector<double> rest = resumed_losses(recipe(two), true, 0);
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(parts, whole);
    const TrainedModel trained = load_run(one.path());
    ASSERT_EQ(trained.trained_layers.size(), 10u);
    EXPECT_TRUE(trained.trained_layers.begin()->second.weight_step.defined());
    const QuantizationResult result = quantize(trained, {.samples = 32});
    EXPECT_TRUE(result.trained_ranges);
  }
}

TEST(QuantizedTraining, LearnedScalesWorkWithOtherKeys) {
  for (const std::vector<std::string>& settings :
       std::vector<std::vector<std::string>>{{"compile=step"},
                                             {"gradient_accumulation_steps=2"},
                                             {"gradient_accumulation_dtype=fp32", "gradient_accumulation_steps=2"},
                                             {"optimizer_in_backward=true", "optimizer_impl=auto"},
                                             {"max_grad_norm=1"},
                                             {"on_nan=skip"},
                                             {"precision=bf16", "amp_level=O2", "optimizer_impl=auto"},
                                             {"recompute=blocks"}}) {
    SCOPED_TRACE(settings.front());
    Recipe recipe = quantized_recipe(settings);
    recipe.quantize_scales = "learned";
    const std::vector<double> losses = losses_of(recipe, 6);
    EXPECT_TRUE(std::isfinite(losses.back()));
    EXPECT_LT(losses.back(), losses.front());
  }
}

TEST(QuantizedTraining, WarnsAboutStepsAfterTheEnd) {
  const auto warnings_of = [](const std::vector<std::string>& settings) {
    Recipe recipe = quantized_recipe(settings);
    recipe.epochs = 1;
    const CapturedLog log;
    Trainer(recipe).fit();
    return log.text();
  };
  EXPECT_THAT(
      warnings_of({"quantize_start_step=12", "batch_norm_freeze_step=40"}),
      testing::AllOf(HasSubstr("quantize = int8 has no effect, because quantize_start_step = 12, but the run has "
                               "only 12 steps"),
                     HasSubstr("batch_norm_freeze_step = 40 has no effect, because the run has only 12 steps")));
  EXPECT_THAT(warnings_of({"quantize_start_step=11", "batch_norm_freeze_step=11"}),
              testing::Not(HasSubstr("has no effect")));
}

namespace {

class QuantizedTrainingRun : public TrainedSuite<QuantizedTrainingRun> {
 public:
  static Recipe recipe(const TemporaryFolder& folder) {
    Recipe recipe = small_run(folder);
    recipe.model = "digits_resnet";
    recipe.quantize = "int8";
    return recipe;
  }
};

}  // namespace

TEST_F(QuantizedTrainingRun, QuantizesWithTheRangesOfTraining) {
  const QuantizationResult result = quantize(trained(), {.samples = 32});
  EXPECT_EQ(result.quantized.report.quantized(), 10);
  ASSERT_EQ(trained().trained_layers.size(), 10);
  for (const quant::QuantizedLayer& layer : *result.quantized.layers) {
    const auto input = quant::quantized_input(layer.name, trained().trained_layers.at(layer.name), layer.kind);
    EXPECT_TRUE(layer.input.scale.equal(input.parameters.scale)) << layer.name;
  }
  // The evaluation at the end of training was that of the fake-quantized model.
  Recipe recipe = trained().job.recipe;
  recipe.run_folder.clear();
  const FitResult fit = Trainer(recipe).fit();
  EXPECT_NEAR(result.after.evaluation.accuracy, fit.evaluation->accuracy, 0.006) << "two of 360 digits";
  EXPECT_NEAR(result.after.evaluation.loss, fit.evaluation->loss, 0.02 * fit.evaluation->loss);
}

TEST_F(QuantizedTrainingRun, OtherOptionsAreCalibratedAndReported) {
  const CapturedLog log;
  const QuantizationResult result =
      quantize(trained(), {.options = {.method = quant::Method::weight_only}, .samples = 32});
  EXPECT_EQ(result.quantized.report.quantized(), 10);
  EXPECT_THAT(log.text(), HasSubstr("the ranges from training are not used"));
}

TEST(QuantizedTraining, BadInput) {
  const auto error = [](const std::vector<std::string>& settings) {
    return error_of([&] { quantized_recipe(settings); });
  };
  EXPECT_THAT(error({"quantize=int4"}), HasSubstr("quantize = \"int4\": expected one of: none, int8"));
  EXPECT_THAT(error({"quantize=none", "quantize_start_step=5"}),
              HasSubstr("quantize_start_step = 5 works only with quantize = int8"));
  EXPECT_THAT(error({"batch_norm_freeze_step=-1"}), HasSubstr("batch_norm_freeze_step"));
  EXPECT_THAT(error({"quantize=none", "quantize_scales=learned"}),
              HasSubstr("quantize_scales = learned works only with quantize = int8"));
  EXPECT_THAT(error({"quantize_scales=trained"}), HasSubstr("expected one of: observed, learned"));
  Job job = make_job(quantized_recipe({"quantize_scales=learned"}));
  EXPECT_THAT(error_of([&] { QuantizedTraining(job, 2); }),
              HasSubstr("quantize_scales = learned works only with one process"));
}

}  // namespace bellows::train
