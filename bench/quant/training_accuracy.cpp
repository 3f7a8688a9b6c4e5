#include "bench/quant/training_accuracy.h"

#include <filesystem>

#include "bellows/train/inference/quantization.h"
#include "bellows/train/trainer.h"

namespace bellows::bench {

namespace {

constexpr double quantize_from = 0.6, freeze_from = 0.85;

train::Recipe digits_recipe(const std::string& data, int64_t epochs, int64_t seed, const std::string& folder) {
  train::Recipe recipe;
  recipe.model = "digits_resnet";
  recipe.data = data;
  recipe.epochs = epochs;
  recipe.batch_size = 32;
  recipe.optimizer = "adamw";
  recipe.lr = 3e-3;
  recipe.warmup_epochs = 1;
  recipe.lr_schedule = "linear";
  recipe.compile = "step";
  recipe.seed = seed;
  recipe.run_folder = folder;
  return recipe;
}

/// Returns the number of steps.
int64_t train_once(const train::Recipe& recipe) {
  std::filesystem::remove_all(recipe.run_folder);
  return train::Trainer(recipe).fit().steps;
}

train::QuantizationResult quantized(const train::Recipe& recipe) {
  return train::quantize(train::load_run(recipe.run_folder), {});
}

}  // namespace

TrainingAccuracy accuracy_of_training(const std::string& data, int64_t epochs, int64_t seed) {
  const auto folder = std::filesystem::temp_directory_path() / "bench-quantized-training";
  const train::Recipe plain = digits_recipe(data, epochs, seed, folder / "fp32");
  const int64_t steps = train_once(plain);
  train::Recipe with_quantization = digits_recipe(data, epochs, seed, folder / "int8");
  with_quantization.quantize = "int8";
  with_quantization.quantize_start_step = static_cast<int64_t>(quantize_from * static_cast<double>(steps));
  with_quantization.batch_norm_freeze_step = static_cast<int64_t>(freeze_from * static_cast<double>(steps));
  train_once(with_quantization);
  const train::QuantizationResult calibrated = quantized(plain), trained = quantized(with_quantization);
  std::filesystem::remove_all(folder);
  return {.fp32 = 100 * calibrated.before.evaluation.accuracy,
          .calibrated = 100 * calibrated.after.evaluation.accuracy,
          .trained = 100 * trained.after.evaluation.accuracy};
}

}  // namespace bellows::bench
