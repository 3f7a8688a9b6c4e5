#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/core/registry.h"
#include "bellows/models/model_size.h"

namespace bellows::models {

/// Kind of the inputs, [N, …] each: images [C, H, W], token ids [T] (int64), time series [T, C], or arrays. Arrays are
/// fields of the data without changes, one for each input; with a single input, numbers [F].
enum class InputKind { image, tokens, series, arrays };

/// An input of a model that has several.
struct InputSpec {
  std::string name;
  std::vector<int64_t> shape = {};  ///< of a sample, for measurements without data; empty: unknown
};
/// Kind of the logits: for whole samples [N, classes], pixels [N, classes, H, W], or tokens [N, T, words].
enum class OutputKind { sample, pixel, token };

/// A registered model.
struct ModelEntry {
  std::string name;
  std::string description;
  /// Intended shape of a sample; 0: any. Images: channels, height, width. Tokens: vocabulary size, tokens, 0. Series:
  /// values per step, steps, 0.
  std::array<int64_t, 3> input_shape;
  /// Params: num_classes – for whole samples and pixels; in_channels – for images and series; for tokens, the
  ///                       vocabulary size
  std::function<Model(int64_t num_classes, int64_t in_channels)> make;
  InputKind input = InputKind::image;
  OutputKind output = OutputKind::sample;
  std::vector<InputSpec> inputs = {};  ///< for kind `arrays`, in the order of the model; empty: a single input
  /// The model size with a vocabulary of `words`, and the same architecture in another size. Set both or neither.
  std::function<ModelSize(int64_t words)> model_size = {};
  std::function<Model(const ModelSize& model_size, int64_t num_classes)> make_sized = {};
};

/// An input batch for measurements, with the same values in every run. Token ids do not contain 0, the padding.
/// Params: length – tokens, steps, or height and width of an image; 0: the intended size, or 224 if images may have any
///                  size
/// Throws: c10::ValueError if batch is below 1, length is below 0 or the model has several inputs
at::Tensor example_input(const ModelEntry& entry, int64_t batch, int64_t length = 0);

/// Like example_input(), for models with any number of inputs, in their order.
/// Throws: c10::ValueError like example_input(), or if the shape of an input is unknown
std::vector<at::Tensor> example_inputs(const ModelEntry& entry, int64_t batch, int64_t length = 0);

/// The cross-entropy of the model's output for such a batch, with labels that are the same in every run.
at::Tensor example_loss(const ModelEntry& entry, const at::Tensor& output);

/// All models by name: "mlp", "digits_resnet", "resnet18", "resnet34", "resnet50", "unet", "bert-base", "bert-20m",
/// "distilbert-base", "gpt2", "tabular_mlp", "encoder_decoder", then the added ones.
/// Throws: c10::ValueError once if an announced model has a name that is already used; that model is skipped
const Registry<ModelEntry>& registry();

/// Registers a user's model. Call it before the model is requested.
/// Throws:  c10::ValueError if the name is already used
/// Threads: not while another thread reads registry()
void register_model(ModelEntry entry);

/// Like register_model(), for static initializers, which must not throw: the next call of registry() adds the model.
/// BELLOWS_MODEL (register_model.h) uses it.
/// Threads: any
void announce_model(ModelEntry entry) noexcept;

/// Resolves the `model` of a recipe: the name of a registered model, the path of a config.json of Hugging Face
/// (anything that ends in .json; see config.h), or the path of a TorchScript file (anything else with a slash, or with
/// the suffix .pt, .pth, .ts or .torchscript).
/// Throws: c10::ValueError if there is no such model (the message suggests the nearest name) or the file cannot be used
ModelEntry model_entry(const std::string& name_or_file);

}  // namespace bellows::models
