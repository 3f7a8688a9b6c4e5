#include "bellows/train/resolved_job.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/core/device.h"
#include "bellows/core/error.h"
#include "bellows/models/pretrained/pretrained.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/recipe/recipe_error.h"

namespace bellows::train {

namespace {

using models::InputKind;
using models::ModelEntry;

const char* input_words(InputKind input) {
  return input == InputKind::image    ? "images"
         : input == InputKind::tokens ? "texts"
         : input == InputKind::series ? "time series"
                                      : "several inputs, each from the field of the same name";
}

/// Checks that the model can read feature columns: it has one input of numbers, or does not declare its input.
void check_features(const Recipe& recipe, const ModelEntry& entry) {
  const bool undeclared =
      entry.input == InputKind::image && entry.input_shape[1] == 0 && entry.output != models::OutputKind::pixel;
  const auto reads_columns = [](const ModelEntry& model) {
    return model.input == InputKind::arrays && model.inputs.empty();
  };
  if (recipe.features.empty() || undeclared || reads_columns(entry)) return;
  std::vector<std::string> fitting;
  for (const ModelEntry& model : models::registry().rows()) {
    if (reads_columns(model)) fitting.push_back(model.name);
  }
  check_recipe(false, "features = ", recipe.features, ": the model \"", recipe.model, "\" reads ",
               input_words(entry.input),
               ", not feature columns. Models that read feature columns: ", c10::Join(", ", fitting),
               ". Choose one of them, or leave features empty.");
}

ModelEntry entry_of(const Recipe& recipe) {
  ModelEntry entry;
  try {
    entry = models::model_entry(recipe.model);
  } catch (const c10::Error& error) {
    check_recipe(false, user_message(error));
  }
  check_features(recipe, entry);
  // A model without a declared input reads images, unless the recipe names fields of numbers.
  if (!recipe.features.empty() && entry.input == InputKind::image) {
    entry.input = InputKind::arrays;
    entry.input_shape = {0, 0, 0};
  }
  return entry;
}

}  // namespace

const DataSplit& ResolvedJob::split() const {
  TORCH_CHECK(data, "ResolvedJob: the data is not open. Call resolve() instead of resolve_model().");
  return *data;
}

data::DatasetInfo ResolvedJob::info() const {
  return data ? data->info() : data::DatasetInfo{};
}

int64_t ResolvedJob::num_classes() const {
  return recipe.num_classes > 0 ? recipe.num_classes : static_cast<int64_t>(info().classes.size());
}

int64_t ResolvedJob::input_width() const {
  const int64_t meant = model.input_shape[0];
  if (model.input == InputKind::image) return image_channels(*this);
  if (model.input == InputKind::series && data) return series_width(data->whole);
  if (model.input == InputKind::arrays && data) return features_width(*this);
  if (model.input != InputKind::tokens) return meant > 0 ? meant : 3;
  if (tokenizer) return tokenizer->vocabulary;
  TORCH_CHECK_VALUE(meant > 0, "the model \"", model.name,
                    "\" does not declare its vocabulary size. Set tokenizer, or declare input_shape in BELLOWS_MODEL.");
  return meant;
}

int64_t ResolvedJob::max_length() const {
  return recipe.max_length > 0 ? recipe.max_length : model.input_shape[1];
}

int64_t ResolvedJob::row_length() const {
  constexpr int64_t default_length = 128;
  return max_length() == 0 && task.loss == LossKind::next_token ? default_length : max_length();
}

Recipe with_pretrained_model(Recipe recipe) {
  if (recipe.model != Recipe{}.model) return recipe;
  const std::string config = models::pretrained_config(recipe.weights);
  if (!config.empty()) recipe.model = config;
  return recipe;
}

Recipe with_model_defaults(Recipe recipe, const ModelEntry& model) {
  const bool fits_sgd = model.input == InputKind::image;
  const bool chosen = recipe.optimizer != "auto";
  if (!chosen) recipe.optimizer = fits_sgd ? "sgd" : "adamw";
  if (recipe.lr > 0) return recipe;
  const bool sgd = recipe.optimizer == "sgd" || recipe.optimizer == "larc";
  const double for_texts = recipe.weights.empty() ? 5e-4 : 5e-5;  // pretrained weights take small steps only
  recipe.lr = sgd ? 0.05 : model.input == InputKind::tokens ? for_texts : 1e-3;
  return recipe;
}

Recipe with_model_defaults(const Recipe& recipe) {
  const bool chosen = recipe.optimizer != "auto" && recipe.lr > 0;
  if (chosen) return recipe;
  const Recipe complete = with_pretrained_model(recipe);
  return with_model_defaults(complete, entry_of(complete));
}

ResolvedJob resolve_model(const Recipe& given) {
  given.validate();
  const Recipe recipe = with_pretrained_model(given);
  ResolvedJob job;
  job.model = entry_of(recipe);
  job.recipe = with_model_defaults(recipe, job.model);
  job.device = parse_device(recipe.device);
  job.task = task_of(recipe, job.model);
  const std::vector<std::string> targets = split_list(recipe.target);
  job.task.outputs = recipe.num_classes;
  if (!job.task.classifies_samples() && !job.task.per_pixel)
    job.task.outputs = std::max(recipe.num_classes, static_cast<int64_t>(targets.size()));
  check_input_keys(recipe, job.model.input);
  for (const std::string& feature : split_list(recipe.features)) {
    check_recipe(std::ranges::find(targets, feature) == targets.end(), "features: \"", feature,
                 "\" is the target, so the model must not read it. Remove it from features.");
  }
  check_recipe(!job.task.per_pixel || recipe.augment == "none", "augment = ", recipe.augment,
               " would change the images but not their masks. Set augment: none.");
  check_mixed_labels(job);
  if (!recipe.tokenizer.empty() && job.model.input == InputKind::tokens)
    job.tokenizer = data::open_tokenizer(recipe.tokenizer);
  return job;
}

ResolvedJob resolve(const Recipe& recipe) {
  ResolvedJob job = resolve_model(recipe);
  job.data = split_data(job);
  if (job.task.classifies_samples() || job.task.per_pixel) {
    job.task.outputs = job.num_classes();
  } else if (job.task.loss != LossKind::next_token && recipe.num_classes == 0) {
    job.task.outputs = targets_width(job);
  }
  check_targets(job);
  return job;
}

}  // namespace bellows::train
