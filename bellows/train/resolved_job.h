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

/// A recipe whose names are resolved once: model, device, task, tokenizer and data. All objects of a run are created
/// from it.
struct ResolvedJob {
  Recipe recipe;  ///< `optimizer` and `lr` are set if they were `auto` and 0
  models::ModelEntry model;
  c10::Device device{c10::kCPU};
  Task task;
  std::optional<data::TextTokenizer> tokenizer{};  ///< for text models
  std::optional<DataSplit> data{};                 ///< empty after resolve_model()

  /// Throws: c10::Error if resolve_model() created this
  const DataSplit& split() const;
  /// Information about the data, with the classes that were found in them. Empty without data.
  data::DatasetInfo info() const;
  /// Number of classes of a classification; 0 if unknown.
  int64_t num_classes() const;
  /// Width of the model's first layer: image channels, vocabulary size, values per time step, or features.
  int64_t input_width() const;
  /// Maximum number of tokens of a text; 0: unlimited.
  int64_t max_length() const;
};

/// Resolves everything except the data.
/// Params: recipe – `data` is not read
/// Throws: RecipeError if the model is unknown (the message suggests the nearest name), a file does not contain a
///         model, or keys do not fit the model. c10::ValueError if a value is out of range, the device does not exist
///         or the tokenizer cannot be read
ResolvedJob resolve_model(const Recipe& recipe);
/// Like resolve_model(), and opens the data.
/// Cost:   that of split_data()
/// Throws: like resolve_model() and data::open()
ResolvedJob resolve(const Recipe& recipe);

/// Sets `optimizer` and `lr` if they are `auto` and 0: SGD with 0.05 for images; AdamW with 5e-4 for text models (5e-5 with
/// pretrained `weights`), with 1e-3 otherwise.
Recipe with_model_defaults(Recipe recipe, const models::ModelEntry& model);
Recipe with_model_defaults(const Recipe& recipe);

}  // namespace bellows::train
