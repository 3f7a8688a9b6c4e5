#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// A setting that was not imported.
struct UnsupportedKey {
  std::string key;     ///< the path of the key, such as "zero_optimization.offload_optimizer"
  std::string value;   ///< the value as JSON, shortened
  std::string reason;  ///< why the recipe does not contain the setting, and what to do instead
};

/// A recipe with the settings of another library's configuration.
struct ImportedRecipe {
  Recipe recipe;                            ///< has passed validate()
  std::vector<std::string> changed;         ///< recipe keys whose values are not the default, in recipe_fields()' order
  std::vector<UnsupportedKey> unsupported;  ///< sorted by key

  /// Returns the changed keys as YAML. Recipe::parse() restores `recipe` from it.
  std::string to_yaml() const;
};

/// Converts the JSON configuration of DeepSpeed (`ds_config.json`) to a recipe.
///
/// Optimizer parameters that are missing get DeepSpeed's defaults. A key with the value "auto", which the Hugging Face
/// Trainer replaces, keeps the default of the recipe. `unsupported` contains these keys, unknown keys, and all settings
/// for which there is no recipe key. Comments in the JSON (`//` and `/* */`) are ignored.
/// Params: json  – the text of the configuration
///         where – name of the text in error messages, such as a path
///         ranks – number of ranks of the training job: `batch_size` of a recipe counts the samples of all ranks
/// Throws: c10::ValueError if the text is not valid JSON, if a key occurs twice, or if a value has the wrong type or
///         range (the message has the key, the expected and the actual value). It is also thrown if the batch sizes
///         contradict each other, or if `ranks` is out of range
/// Ref:    https://www.deepspeed.ai/docs/config-json/
ImportedRecipe import_deepspeed_config(std::string_view json, std::string_view where, int64_t ranks);

}  // namespace bellows::train
