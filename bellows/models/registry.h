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

/// The kind of a model's inputs. Images are [N, C, H, W], token ids are int64 [N, T], and time series are [N, T, C].
/// Arrays are unchanged fields of the dataset, with one field per input. A single array input has the shape [N, F].
enum class InputKind { image, tokens, series, arrays };

/// One input of a model with several inputs.
struct InputSpec {
  std::string name;
  std::vector<int64_t> shape = {};  ///< shape of a sample, for measurements without data; empty if unknown
};
/// The kind of the logits: one per sample [N, classes], per pixel [N, classes, H, W], or per token [N, T, vocabulary].
enum class OutputKind { sample, pixel, token };

/// A registered model.
struct ModelEntry {
  std::string name;
  std::string description;
  /// Intended shape of a sample; 0 means any size. For images: channels, height, width. For tokens: vocabulary size,
  /// number of tokens, 0. For series: values per time step, number of steps, 0.
  std::array<int64_t, 3> input_shape;
  /// Creates the model.
  /// Params: num_classes – number of classes of a sample or pixel
  ///         in_channels – channels of images, values per step of series, or vocabulary size for tokens
  std::function<Model(int64_t num_classes, int64_t in_channels)> make;
  InputKind input = InputKind::image;
  OutputKind output = OutputKind::sample;
  /// For kind `arrays`, the inputs in the model's order. Empty if there is a single input.
  std::vector<InputSpec> inputs = {};
  /// `model_size` returns the model size for a vocabulary of `words`. `make_sized` creates a model of the same
  /// architecture in another size. Set both or neither.
  std::function<ModelSize(int64_t words)> model_size = {};
  std::function<Model(const ModelSize& model_size, int64_t num_classes)> make_sized = {};
};

/// Returns an input batch for measurements, with the same values in every run. Token ids do not contain 0, the padding
/// id.
/// Params: length – number of tokens or steps, or height and width of an image. 0: the intended size, or 224 if images
///                  may have any size
/// Throws: c10::ValueError if `batch` is below 1, if `length` is below 0, or if the model has several inputs
at::Tensor example_input(const ModelEntry& entry, int64_t batch, int64_t length = 0);

/// Like example_input(), but for models with any number of inputs. The result is in the order of the model's inputs.
/// Throws: c10::ValueError like example_input(), or if the shape of an input is unknown
std::vector<at::Tensor> example_inputs(const ModelEntry& entry, int64_t batch, int64_t length = 0);

/// Returns the cross-entropy of the model's output for a batch from example_input() or example_inputs(). The labels are
/// the same in every run.
at::Tensor example_loss(const ModelEntry& entry, const at::Tensor& output);

/// Returns all models by name: "mlp", "digits_resnet", "resnet18" to "resnet152", "alexnet", "vgg11" to "vgg19",
/// "vgg11_bn" to "vgg19_bn", "googlenet", "inception_v2", "inception_v3", "unet", "bert-base", "bert-20m",
/// "distilbert-base", "gpt2", "tabular_mlp", "encoder_decoder", then the models that were registered later.
/// Throws: c10::ValueError if an announced model has a name that is already used. This model is not added, and later
///         calls do not throw again
const Registry<ModelEntry>& registry();

/// Registers your own model. Call it before the model is requested.
/// Throws:  c10::ValueError if the name is already used
/// Threads: do not call it while another thread reads registry()
void register_model(ModelEntry entry);

/// Like register_model(), but for static initializers, which must not throw. The next call of registry() adds the
/// model. BELLOWS_MODEL (register_model.h) uses this function.
/// Threads: may be called on any thread
void announce_model(ModelEntry entry) noexcept;

/// Resolves the `model` of a recipe. This is the name of a registered model, or the path of a Hugging Face config.json
/// or of a program. All values that end in .json are treated as a config.json (see config.h), and all that end in .pt2
/// as an exported program (exported_model.h). All other values that contain a slash, or that end in .pt, .pth, .ts or
/// .torchscript, are treated as a TorchScript file.
/// Throws: c10::ValueError if there is no such model (the message suggests the nearest name), or if the file cannot be
///         used
ModelEntry model_entry(const std::string& name_or_file);

/// Returns whether `name` names a file that contains both a program and its weights: a TorchScript file or an exported
/// program.
bool is_program_path(const std::string& name);

}  // namespace bellows::models
