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
  std::array<int64_t, 3> input_shape;  ///< channels, height, width of a sample that it is meant for; 0: any
  std::function<Model(int64_t num_classes, int64_t in_channels)> make;
};

/// All models by name: "mlp", "digits_resnet", "resnet18", "resnet34", "resnet50", then those that were added.
/// Throws: c10::ValueError – a model that was announced has a name that is taken (once; the model is left out)
const Registry<ModelEntry>& registry();

/// Adds a model of the user's, before it is asked for.
/// Throws:  c10::ValueError – the name is taken
/// Threads: not while another thread reads registry()
void register_model(ModelEntry entry);

/// The same from a static initialiser, where nothing may throw: registry() adds it when it is next asked.
/// BELLOWS_MODEL (register_model.h) calls this.
/// Threads: any
void announce_model(ModelEntry entry) noexcept;

/// What a recipe's `model` means: the name of a registered model, or the path of a TorchScript file, which is
/// anything with a slash or an ending .pt, .pth, .ts or .torchscript.
/// Throws: c10::ValueError – no model is called so (with the nearest name), or the file cannot be used
ModelEntry model_entry(const std::string& name_or_file);

}  // namespace bellows::models
