#pragma once

#include <functional>
#include <string>

#include "bellows/core/registry.h"
#include "bellows/system/machine.h"
#include "bellows/techniques/technique.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// How a model runs after training. Techniques for inference change these settings, as techniques for training change a
/// recipe.
struct InferenceSettings {
  Recipe recipe;                ///< `precision`, `amp_level` and `channels_last` apply to inference, too
  bool inference_mode = false;  ///< run under the guard bellows::inference_mode, without recording gradients
  bool compile = false;         ///< compile the forward pass with frozen weights
  bool int8 = false;            ///< static int8 layers; their other operators compute in fp32
  /// With `int8`: the layers with the largest errors stay in floating point until the accuracy is high enough.
  bool keep_sensitive_layers = false;
};

/// A row of the table of techniques for inference: a named change of the settings, with its conditions, expected effect
/// and exactness. The members are those of Technique.
struct InferenceTechnique {
  std::string name;
  std::string title;  ///< its words have at most 17 letters
  std::string changes;
  std::function<void(InferenceSettings&)> apply;
  std::function<std::string(const InferenceSettings&, const Machine&)> obstacle = {};
  Expectation expected;
  /// Replaces `expected` in a ladder, if it depends on the machine.
  std::function<Expectation(const Machine&)> expected_on = {};
  Exactness exactness = Exactness::exact;
  std::string tolerance = {};
  /// Whether the technique is a more accurate form of the previous one. It is then measured only if the previous one lost
  /// too much accuracy.
  bool is_correction = false;
  std::string source;
};

/// Adds the techniques for inference in the order of the ladder.
void register_inference_techniques(Registry<InferenceTechnique>& registry);

/// Returns the table as Markdown, with one section per technique.
std::string techniques_page(const Registry<InferenceTechnique>& registry);

}  // namespace bellows::train
