// Trained models are quantized with their own data.
#include "bellows/train/inference/quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bellows/quant/file.h"
#include "tests/train/inference/support.h"

namespace bellows::train {

namespace {

using testing::HasSubstr;

/// Two epochs of the small ResNet on the digits.
class QuantizedRun : public TrainedSuite<QuantizedRun> {
 public:
  static Recipe recipe(const TemporaryFolder& folder) {
    Recipe recipe = small_run(folder);
    recipe.model = "digits_resnet";
    return recipe;
  }
};

}  // namespace

TEST_F(QuantizedRun, KeepsTheAccuracy) {
  const QuantizationResult result = quantize(trained(), {.samples = 64});
  EXPECT_EQ(result.calibration_samples, 64);
  EXPECT_GT(result.before.evaluation.accuracy, 0.3);
  EXPECT_GT(result.change(), -0.02);
  EXPECT_LT(result.after.weight_bytes, 0.3 * static_cast<double>(result.before.weight_bytes));
  EXPECT_EQ(result.quantized.report.quantized(), 10);
  const std::string page = quantization_page(trained(), result);
  EXPECT_THAT(page, HasSubstr("layer3.0.conv2"));
  EXPECT_THAT(page, HasSubstr("</html>"));
}

TEST_F(QuantizedRun, FilesEvaluateAndPredictAlike) {
  const QuantizationResult result = quantize(trained(), {.samples = 64});
  const std::string file = path("int8.safetensors");
  quant::save_quantized(file, result.quantized);
  const TrainedModel loaded = load_trained(trained().job.recipe, file);
  EXPECT_TRUE(loaded.quantized);
  EXPECT_EQ(evaluate(loaded).evaluation.accuracy, result.after.evaluation.accuracy);
  const auto predictions = all_predictions(loaded, open_prediction_data(loaded, "", ""));
  EXPECT_EQ(static_cast<int64_t>(predictions.size()), result.after.evaluation.samples);
}

TEST_F(QuantizedRun, CalibrationIsReproducible) {
  const auto first = calibration_inputs(trained(), 40), second = calibration_inputs(trained(), 40);
  ASSERT_EQ(first.size(), second.size());
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(first[i][0].equal(second[i][0]));
  EXPECT_FALSE(first[0][0][0].equal(first[0][0][1]));
}

TEST_F(QuantizedRun, SensitiveLayersStayInFloatingPoint) {
  const quant::Options two_bits{.method = quant::Method::weight_only, .weights = quant::weight_scheme(2)};
  const QuantizationResult bad = quantize(trained(), {.options = two_bits, .samples = 64});
  ASSERT_LT(bad.change(), -0.006) << "two bits cost the class of at least three digits";
  const double limit = -bad.change() / 2;
  const QuantizationResult good = quantize(trained(), {.options = two_bits, .samples = 64, .max_drop = limit});
  EXPECT_GE(good.change(), -limit);
  EXPECT_FALSE(good.kept.empty());
  EXPECT_LT(good.quantized.report.quantized(), 10);
}

TEST_F(QuantizedRun, Errors) {
  EXPECT_THROW(
      {
        try {
          quantize(trained(), {.max_drop = 2});
        } catch (const c10::Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("expected `max_drop` from 0 to 1, got 2"));
          throw;
        }
      },
      c10::ValueError);
  EXPECT_THROW(calibration_inputs(trained(), 0), c10::ValueError);
}

}  // namespace bellows::train
