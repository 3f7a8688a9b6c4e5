#include "bellows/models/registry.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>

#include "bellows/core/error.h"
#include "bellows/core/mutex.h"
#include "bellows/models/bert.h"
#include "bellows/models/config.h"
#include "bellows/models/distilbert.h"
#include "bellows/models/encoder_decoder.h"
#include "bellows/models/exported/exported_model.h"
#include "bellows/models/formula_weights.h"
#include "bellows/models/gpt.h"
#include "bellows/models/mlp.h"
#include "bellows/models/plugin.h"
#include "bellows/models/resnet.h"
#include "bellows/models/torchscript.h"
#include "bellows/models/unet.h"
#include "bellows/models/vision/alexnet.h"
#include "bellows/models/vision/googlenet.h"
#include "bellows/models/vision/inception_v2.h"
#include "bellows/models/vision/inception_v3.h"
#include "bellows/models/vision/vgg.h"

namespace bellows::models {

namespace {

[[gnu::used]] constexpr char library_mark[] = BELLOWS_LIBRARY_MARK;
constexpr std::array<int64_t, 3> digits_shape = {1, 8, 8}, photo_shape = {3, 224, 224};

/// Adds a model for photos. Params: make – creates it from options
template <class Options>
void add_photo_model(Registry<ModelEntry>& models, const char* name, const char* description,
                     Model (*make)(const Options&), const std::array<int64_t, 3>& shape = photo_shape) {
  models.add({name, description, shape, [make](int64_t classes, int64_t channels) {
                Options options;
                options.num_classes = classes;
                options.in_channels = channels;
                return make(options);
              }});
}

void add_image_models(Registry<ModelEntry>& models) {
  models.add({"mlp", "two hidden layers of 128 on 8x8 images", digits_shape, [](int64_t classes, int64_t channels) {
                return mlp({.in_features = channels * digits_shape[1] * digits_shape[2], .num_classes = classes});
              }});
  models.add(
      {"digits_resnet", "small residual network for small images", digits_shape, [](int64_t classes, int64_t channels) {
         return digits_resnet({.num_classes = classes, .in_channels = channels});
       }});
  add_photo_model(models, "resnet18", "ResNet-18 with torchvision's names", resnet18);
  add_photo_model(models, "resnet34", "ResNet-34 with torchvision's names", resnet34);
  add_photo_model(models, "resnet50", "ResNet-50 with torchvision's names", resnet50);
  add_photo_model(models, "resnet101", "ResNet-101 with torchvision's names", resnet101);
  add_photo_model(models, "resnet152", "ResNet-152 with torchvision's names", resnet152);
  add_photo_model(models, "alexnet", "AlexNet with torchvision's names", alexnet);
  add_photo_model(models, "vgg11", "VGG-11 with torchvision's names", vgg11);
  add_photo_model(models, "vgg13", "VGG-13 with torchvision's names", vgg13);
  add_photo_model(models, "vgg16", "VGG-16 with torchvision's names", vgg16);
  add_photo_model(models, "vgg19", "VGG-19 with torchvision's names", vgg19);
  add_photo_model(models, "vgg11_bn", "VGG-11 with batch norms and torchvision's names", vgg11_bn);
  add_photo_model(models, "vgg13_bn", "VGG-13 with batch norms and torchvision's names", vgg13_bn);
  add_photo_model(models, "vgg16_bn", "VGG-16 with batch norms and torchvision's names", vgg16_bn);
  add_photo_model(models, "vgg19_bn", "VGG-19 with batch norms and torchvision's names", vgg19_bn);
  add_photo_model(models, "googlenet", "GoogLeNet with torchvision's names and auxiliary outputs", googlenet);
  add_photo_model(models, "inception_v2", "batch-norm Inception", inception_v2);
  add_photo_model(models, "inception_v3", "Inception-v3 with torchvision's names and an auxiliary output", inception_v3,
                  {3, 299, 299});
  models.add({"unet", "U-Net, which predicts a class for each pixel", photo_shape,
              [](int64_t classes, int64_t channels) { return unet({.num_classes = classes, .in_channels = channels}); },
              InputKind::image, OutputKind::pixel});
}

/// Adds a text model of one size. Params: make – creates it from options and a number of classes
template <class Options>
void add_text_model(Registry<ModelEntry>& models, const char* name, const char* description, const Options& options,
                    OutputKind output, Model (*make)(const Options&, int64_t classes)) {
  const auto model_size = [options](int64_t words) {
    ModelSize full = model_size_of(options);
    full.words = words;
    return full;
  };
  const auto sized = [name, options, make](const ModelSize& of, int64_t classes) {
    return make(with_model_size(options, of), classes).renamed(name);
  };
  models.add({.name = name,
              .description = description,
              .input_shape = {options.vocab_size, 128, 0},
              .make = [model_size, sized](int64_t classes, int64_t words) { return sized(model_size(words), classes); },
              .input = InputKind::tokens,
              .output = output,
              .model_size = model_size,
              .make_sized = sized});
}

Model bert_classifier(const BertOptions& options, int64_t classes) {
  BertOptions own = options;
  own.num_labels = classes;
  return bert(own);
}

Model distilbert_classifier(const DistilBertOptions& options, int64_t classes) {
  DistilBertOptions own = options;
  own.num_labels = classes;
  return distilbert(own);
}

Model next_token_model(const GptOptions& options, int64_t) {
  return gpt(options);
}

void add_sequence_models(Registry<ModelEntry>& models) {
  constexpr std::array<int64_t, 3> statements_shape = {188, 13, 0};  // a year of monthly credit card statements
  add_text_model(models, "bert-base", "BERT of 109 million parameters, classifier", bert_base(), OutputKind::sample,
                 bert_classifier);
  add_text_model(models, "bert-20m", "BERT of 20 million parameters, classifier", bert_20m(), OutputKind::sample,
                 bert_classifier);
  add_text_model(models, "distilbert-base", "DistilBERT of 67 million parameters, classifier", DistilBertOptions{},
                 OutputKind::sample, distilbert_classifier);
  add_text_model(models, "gpt2", "GPT-2 of 124 million parameters, which predicts the next token", GptOptions{},
                 OutputKind::token, next_token_model);
  models.add({"tabular_mlp",
              "two hidden layers of 128 on the columns of a table",
              {8, 0, 0},
              [](int64_t outputs, int64_t features) {
                return mlp({.in_features = features, .num_classes = outputs}).renamed("tabular_mlp");
              },
              InputKind::arrays});
  models.add({"encoder_decoder", "encoder-decoder transformer, which predicts a class for each time series",
              statements_shape,
              [](int64_t classes, int64_t features) {
                return encoder_decoder({.in_features = features, .num_classes = classes});
              },
              InputKind::series});
}

Registry<ModelEntry>& table() {
  static Registry<ModelEntry> models = [] {
    Registry<ModelEntry> own("model");
    add_image_models(own);
    add_sequence_models(own);
    return own;
  }();
  return models;
}

/// Models from static initializers. A function-local static, so that it exists before any of them runs.
struct Announced {
  Mutex mutex;
  std::vector<ModelEntry> entries BELLOWS_GUARDED_BY(mutex);
};
Announced& announced() {
  static Announced list;
  return list;
}

void adopt_announced() {
  std::vector<ModelEntry> entries;
  {
    const MutexLock lock(announced().mutex);
    entries.swap(announced().entries);
  }
  std::string taken;
  for (ModelEntry& entry : entries) {
    if (table().find(entry.name)) {
      taken += (taken.empty() ? "\"" : ", \"") + entry.name + "\"";
    } else {
      table().add(std::move(entry));
    }
  }
  TORCH_CHECK_VALUE(taken.empty(), "BELLOWS_MODEL: ", taken, taken.find(',') == std::string::npos ? " is" : " are",
                    " taken by another model. Register yours under another name.");
}

}  // namespace

const Registry<ModelEntry>& registry() {
  adopt_announced();
  return table();
}

void register_model(ModelEntry entry) {
  adopt_announced();
  table().add(std::move(entry));
}

void announce_model(ModelEntry entry) noexcept {
  const MutexLock lock(announced().mutex);
  announced().entries.push_back(std::move(entry));
}

at::Tensor example_input(const ModelEntry& entry, int64_t batch, int64_t length) {
  TORCH_CHECK_VALUE(batch >= 1 && length >= 0,
                    "example_input: expected a batch of at least 1 and a length of at least 0, got ", batch, " and ",
                    length, " (", entry.name, ").");
  const auto or_else = [](int64_t value, int64_t fallback) { return value > 0 ? value : fallback; };
  const auto& [first, second, third] = entry.input_shape;
  if (entry.input == InputKind::tokens) {
    const int64_t tokens = or_else(or_else(length, second), 128), words = or_else(first, 1000);
    return (formula_labels("input", batch * tokens, words - 1) + 1).view({batch, tokens});
  }
  if (entry.input == InputKind::series)
    return formula_uniform("input", {batch, or_else(or_else(length, second), 13), or_else(first, 1)}).to(at::kFloat);
  TORCH_CHECK_VALUE(entry.inputs.empty(), "example_input: \"", entry.name,
                    "\" has several inputs. Call example_inputs().");
  if (entry.input == InputKind::arrays) return formula_uniform("input", {batch, or_else(first, 8)}).to(at::kFloat);
  const int64_t height = or_else(length, or_else(second, 224)), width = or_else(length, or_else(third, 224));
  return formula_uniform("input", {batch, or_else(first, 3), height, width}).to(at::kFloat);
}

std::vector<at::Tensor> example_inputs(const ModelEntry& entry, int64_t batch, int64_t length) {
  if (entry.inputs.empty()) return {example_input(entry, batch, length)};
  std::vector<at::Tensor> inputs;
  for (const InputSpec& input : entry.inputs) {
    TORCH_CHECK_VALUE(!input.shape.empty(), "example_inputs: the shape of input \"", input.name, "\" of \"", entry.name,
                      "\" is unknown. Set the key data, or declare the shape: .inputs = {{\"", input.name,
                      "\", {1, 28, 28}}}.");
    std::vector<int64_t> shape{batch};
    shape.insert(shape.end(), input.shape.begin(), input.shape.end());
    inputs.push_back(formula_uniform(input.name, shape).to(at::kFloat));
  }
  return inputs;
}

at::Tensor example_loss(const ModelEntry& entry, const at::Tensor& output) {
  const at::Tensor scores = entry.output == OutputKind::token ? output.flatten(0, 1) : output;
  std::vector<int64_t> shape = scores.sizes().vec();
  shape.erase(shape.begin() + 1);
  const at::Tensor labels = formula_labels("labels", c10::multiply_integers(shape), scores.size(1)).view(shape);
  return at::cross_entropy_loss(scores, labels.to(scores.device()), {}, at::Reduction::Mean, -100, 0);
}

ModelEntry model_entry(const std::string& name_or_file) {
  const Registry<ModelEntry>& models = registry();
  if (const ModelEntry* entry = models.find(name_or_file)) return *entry;
  if (name_or_file.ends_with(".json")) return config_entry(name_or_file);
  if (is_exported_path(name_or_file)) return exported_entry(name_or_file);
  if (is_torchscript_path(name_or_file)) return torchscript_entry(name_or_file);
  try {
    return models.at(name_or_file);
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, user_message(error),
                      ". To use your own model, register it with BELLOWS_MODEL in a plugin, or pass a TorchScript file "
                      "(net.pt), a program of torch.export (net.pt2) or a config.json.");
  }
}

bool is_program_path(const std::string& name) {
  return is_exported_path(name) || is_torchscript_path(name);
}

}  // namespace bellows::models
