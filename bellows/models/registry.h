#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "bellows/core/model.h"
#include "bellows/core/registry.h"
#include "bellows/models/extent.h"

namespace bellows::models {

/// What a model reads, [N, …] each: pictures [C, H, W], token ids [T] (int64), or time series [T, C].
enum class InputKind { image, tokens, series };
/// What its scores are of: whole samples [N, classes], pixels [N, classes, H, W], or tokens [N, T, words].
enum class OutputKind { sample, pixel, token };

/// A model that can be asked for by name.
struct ModelEntry {
  std::string name;
  std::string description;
  /// Of a sample that it is meant for, 0: any – image: channels, height, width; tokens: words that it knows, tokens, 0;
  /// series: values a step, steps, 0.
  std::array<int64_t, 3> input_shape;
  /// Params: num_classes – of whole samples and pixels; in_channels – of images and series; of tokens, the words to know
  std::function<Model(int64_t num_classes, int64_t in_channels)> make;
  InputKind input = InputKind::image;
  OutputKind output = OutputKind::sample;
  /// What makes it large when it should know so many words, and the same network of another extent; both or neither.
  std::function<Extent(int64_t words)> extent = {};
  std::function<Model(const Extent& extent, int64_t num_classes)> make_sized = {};
};

/// A batch such as the model reads, for measurements: the same values in every run; token ids without 0, the padding.
/// Params: length – tokens, steps, or height and width of a picture; 0: what the model is meant for, 224 for any picture
/// Throws: c10::ValueError – a batch below 1, a length below 0
at::Tensor example_input(const ModelEntry& entry, int64_t batch, int64_t length = 0);

/// Cross-entropy of what the model made of such a batch, with labels that are the same in every run.
at::Tensor example_loss(const ModelEntry& entry, const at::Tensor& output);

/// All models by name: "mlp", "digits_resnet", "resnet18", "resnet34", "resnet50", "unet", "bert-base", "bert-20m",
/// "distilbert-base", "gpt2", "encoder_decoder", then those that were added.
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

/// What a recipe's `model` means: the name of a registered model; the path of a config.json of Hugging Face's (config.h), which
/// is anything that ends in .json; or the path of a TorchScript file, which is anything else with a slash or an ending .pt,
/// .pth, .ts or .torchscript.
/// Throws: c10::ValueError – no model is called so (with the nearest name), or the file cannot be used
ModelEntry model_entry(const std::string& name_or_file);

}  // namespace bellows::models
