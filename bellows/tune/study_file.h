#pragma once

#include <cstdint>
#include <string>

#include "bellows/train/recipe/recipe.h"
#include "bellows/tune/study.h"

namespace bellows::tune {

/// A search over the keys of a recipe, as a study file describes it (docs/tune.md).
struct StudyFile {
  train::Recipe recipe{};  ///< the keys that the search does not change
  StudyOptions study{};
  std::string model_config{};  ///< JSON of the model, if parameters "model.KEY" change it
  int64_t trials = 50;
  int64_t ranks = 1;          ///< number of ranks of a trial
  double trial_seconds = 0;   ///< time limit of a trial; 0: none
  int64_t trial_bytes = 0;    ///< limit of a trial's memory; 0: none
  double price_per_hour = 0;  ///< of the machine, for the metric cost
};

/// Parses a study file.
/// Params: where  – name of the text in error messages
///         folder – folder to which paths in the text are relative
/// Throws: c10::ValueError if a key is unknown (the message suggests the nearest one), a range is empty or does not fit
///         its recipe key, or constraints contradict each other (the message has the line)
StudyFile parse_study(const std::string& text, const std::string& where, const std::string& folder = ".");
/// Throws: like parse_study(), and if the file cannot be read
StudyFile load_study(const std::string& path);

/// Returns the recipe of a configuration. Parameters "model.KEY" are not applied.
/// Throws: c10::ValueError if the keys do not fit together
train::Recipe recipe_of(const StudyFile& file, const Assignment& values);
/// Returns the model's config.json of a configuration, or an empty text if the search does not change it.
std::string model_config_of(const StudyFile& file, const Assignment& values);
/// If the search changes the model, writes the config.json of a configuration to `path`, and sets the recipe key `model`.
void set_model(train::Recipe& recipe, const StudyFile& file, const Assignment& values, const std::string& path);

}  // namespace bellows::tune
