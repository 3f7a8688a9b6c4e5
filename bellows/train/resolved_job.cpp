#include "bellows/train/resolved_job.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/core/device.h"
#include "bellows/core/error.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/recipe/recipe_error.h"

namespace bellows::train {

namespace {

using models::InputKind;
using models::ModelEntry;

ModelEntry entry_of(const Recipe& recipe) {
  ModelEntry entry;
  try {
    entry = models::model_entry(recipe.model);
  } catch (const c10::Error& error) {
    check_recipe(false, user_message(error));
  }
  // A model without a declared input reads images, unless the recipe names fields of numbers.
  if (!recipe.features.empty() && entry.input == InputKind::image) {
    entry.input = InputKind::arrays;
    entry.input_shape = {0, 0, 0};
  }
  return entry;
}

}  // namespace

const DataSplit& ResolvedJob::split() const {
  TORCH_CHECK(data, "ResolvedJob: the data were not opened: call resolve() instead of resolve_model().");
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
  TORCH_CHECK_VALUE(meant > 0, "make_job: \"", model.name,
                    "\" does not declare its vocabulary size. Set tokenizer, or input_shape in its ModelNotes.");
  return meant;
}

int64_t ResolvedJob::max_length() const {
  return recipe.max_length > 0 ? recipe.max_length : model.input_shape[1];
}

Recipe with_model_defaults(Recipe recipe, const ModelEntry& model) {
  const bool fits_sgd = model.input == InputKind::image;
  const bool chosen = recipe.optimizer != "auto";
  if (!chosen) recipe.optimizer = fits_sgd ? "sgd" : "adamw";
  if (recipe.lr > 0) return recipe;
  const bool sgd = recipe.optimizer == "sgd";
  const double for_texts = recipe.weights.empty() ? 5e-4 : 5e-5;  // pretrained weights take small steps only
  recipe.lr = sgd ? 0.05 : model.input == InputKind::tokens ? for_texts : 1e-3;
  return recipe;
}

Recipe with_model_defaults(const Recipe& recipe) {
  const bool chosen = recipe.optimizer != "auto" && recipe.lr > 0;
  return chosen ? recipe : with_model_defaults(recipe, entry_of(recipe));
}

ResolvedJob resolve_model(const Recipe& recipe) {
  recipe.validate();
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
    check_recipe(std::ranges::find(targets, feature) == targets.end(), "make_job: features: \"", feature,
                 "\" is the target, which the model must not read.");
  }
  check_recipe(!job.task.per_pixel || recipe.augment == "none", "make_job: augment = ", recipe.augment,
               " would change images without their masks; expected none.");
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
