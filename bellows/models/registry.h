#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "bellows/core/model.h"
#include "bellows/core/registry.h"

namespace bellows::models {

/// A model that can be asked for by name.
struct ModelEntry {
  std::string name;
  std::string description;
  std::array<int64_t, 3> input_shape;  ///< channels, height, width of a sample that it is meant for
  std::function<Model(int64_t num_classes, int64_t in_channels)> make;
};

/// All models by name: "mlp", "digits_resnet", "resnet18", "resnet34", "resnet50", then those that were added.
const Registry<ModelEntry>& registry();

/// Adds a model of the user's, before it is asked for.
/// Throws:  c10::ValueError – the name is taken
/// Threads: not while another thread reads registry()
void register_model(ModelEntry entry);

}  // namespace bellows::models
