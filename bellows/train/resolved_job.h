#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bellows/data/text/tokenizer.h"
#include "bellows/models/registry.h"
#include "bellows/train/data/data_split.h"
#include "bellows/train/recipe/recipe.h"
#include "bellows/train/task.h"

namespace bellows::train {

/// A recipe with its names resolved to a model, device, task, tokenizer and data. All objects of a run are created from
/// it.
struct ResolvedJob {
  Recipe recipe;  ///< `optimizer` is not `auto` and `lr` is not 0, see with_model_defaults()
  models::ModelEntry model;
  c10::Device device{c10::kCPU};
  Task task;
  std::optional<data::TextTokenizer> tokenizer{};  ///< for text models with a `tokenizer`
  std::optional<DataSplit> data{};                 ///< empty after resolve_model()

  /// Returns the data.
  /// Throws: c10::Error if this object was created by resolve_model()
  const DataSplit& split() const;
  /// Returns information about the data, including the class names. The result is empty if there is no data.
  data::DatasetInfo info() const;
  /// Returns the number of classes, or 0 if it is unknown.
  int64_t num_classes() const;
  /// Returns the width of the model's first layer: image channels, vocabulary size, values per time step, or features.
  int64_t input_width() const;
  /// Returns the maximum number of tokens in a text, or 0 if there is no limit.
  int64_t max_length() const;
  /// Returns the number of tokens in each row of a language model that predicts the next token: max_length(), or 128 if
  /// there is no limit. For other models, returns max_length().
  int64_t row_length() const;
};

/// Resolves everything except the data. It does not read the recipe's `data`.
/// Throws: RecipeError if the model is unknown (the message suggests the nearest name), a file does not contain a
///         model, or keys do not fit the model. c10::ValueError if a value is out of range, the device does not exist,
///         or the tokenizer cannot be read
ResolvedJob resolve_model(const Recipe& recipe);
/// Like resolve_model(), but also opens the data.
/// Cost:   the cost of split_data(), plus reading up to 64 targets
/// Throws: like resolve_model(), split_data() and check_targets()
ResolvedJob resolve(const Recipe& recipe);

/// Sets `model` to the config.json of the repository, if `weights` is the address of a repository (hf://org/name) and
/// `model` has its default value. Nothing is fetched.
/// Throws: c10::ValueError if the address is invalid
Recipe with_pretrained_model(Recipe recipe);

/// Replaces `optimizer: auto` and `lr: 0` with the model's defaults. The default optimizer is SGD for image models and
/// AdamW for all others. The default learning rate of SGD is 0.05. The default of the other optimizers is 5e-4 for
/// text models (5e-5 with pretrained `weights`) and 1e-3 for all other models.
Recipe with_model_defaults(Recipe recipe, const models::ModelEntry& model);
Recipe with_model_defaults(const Recipe& recipe);

}  // namespace bellows::train
