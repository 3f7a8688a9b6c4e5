#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/models/blocks.h"
#include "bellows/models/head.h"
#include "bellows/models/tokens.h"

namespace bellows::models {
struct BertOptions;
struct DistilBertOptions;
struct GptOptions;
}  // namespace bellows::models

/// Building blocks of the models in this component. Parameter names are those of torch::nn.
namespace bellows::models::layers {

/// Base class of root modules that can run their blocks through a callback; see run_blocks_by().
class Blocks {
 public:
  virtual ~Blocks() = default;
  virtual int64_t block_count() const = 0;
  /// Returns the parts for model_parts(). Empty if the model does not support it.
  virtual std::vector<ModelPart> parts() { return {}; }
  void run_by(RunBlock run) { run_ = std::move(run); }

 protected:
  at::Tensor run(const Block& block, const at::Tensor& input) const { return run_ ? run_(block, input) : block(input); }
  bool has_callback() const { return run_ != nullptr; }

 private:
  RunBlock run_;
};

/// Returns the parameters and buffers of modules.
std::vector<at::Tensor> tensors_of(const std::vector<const torch::nn::Module*>& modules);

/// Lists the parts of a model: its embeddings, its layers and its head.
/// Params: name – of the layers. Their parts are "name.0", "name.1" and so on
///         run – called with a layer, its input and the inputs of the model
template <class Layer, class Run>
std::vector<ModelPart> parts_of(ModelPart embeddings, const std::string& name,
                                const std::vector<std::shared_ptr<Layer>>& layers, const Run& run, ModelPart head) {
  std::vector<ModelPart> parts = {std::move(embeddings)};
  for (size_t i = 0; i < layers.size(); ++i) {
    parts.push_back({name + "." + std::to_string(i), tensors_of({layers[i].get()}),
                     [run, layer = layers[i]](const at::Tensor& x, const std::vector<at::Tensor>& inputs) {
                       return run(layer, x, inputs);
                     }});
  }
  parts.push_back(std::move(head));
  return parts;
}

/// Base class of root modules that end with a linear layer; see forward_with_head().
class Headed {
 public:
  virtual ~Headed() = default;
  virtual bool has_head() const = 0;

 protected:
  at::Tensor scores(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias = {}) const;
};

/// torch::nn::Linear that calls at::linear, a single operator that includes the bias. Autocast casts its weight once
/// per step.
class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }
};
TORCH_MODULE(Linear);

/// Layer normalization over the last dim, with libtorch's kernels or those of the component nn.
class LayerNormImpl : public torch::nn::Module {
 public:
  LayerNormImpl(int64_t features, double eps, bool fused = false);
  at::Tensor forward(const at::Tensor& x) { return normalized(x); }
  /// Computes norm(residual + dropout(x)), in one pass over memory if `fused` is set.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual, double dropout);

  at::Tensor weight, bias;

 private:
  at::Tensor normalized(const at::Tensor& x) const;

  double eps_;
  bool fused_;
};
TORCH_MODULE(LayerNorm);

/// The activation between two linear layers: "gelu", "gelu_new" (tanh approximation, as in GPT-2) or "relu".
enum class Activation { gelu, gelu_tanh, relu };
/// Throws: c10::ValueError if the name is unknown
Activation activation_of(const std::string& model, const std::string& name);
at::Tensor activate(const at::Tensor& x, Activation activation);
/// Computes linear(activate(x)). If `fused` is set, it saves only x for backward.
at::Tensor activated_linear(const at::Tensor& x, Activation activation, const at::Tensor& weight,
                            const at::Tensor& bias, bool fused);

/// Multi-head attention on projected queries, keys and values. With tensor parallelism, the tensors contain some of the
/// heads.
/// Params: d – width of a head
/// Shapes: query [N, T, heads·d]; key, value [N, S, heads·d] → [N, T, heads·d]. `mask` broadcasts to [N, heads, T, S];
///         true means that the query attends to the key. It may be undefined
/// Throws: c10::ValueError if d does not divide the width
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int64_t d,
                     const at::Tensor& mask, bool causal, double dropout);

/// Returns the name of a model's output in transformers.
std::string output_name(TextHead head);

/// Returns an input of a model. It is undefined if it is missing.
inline at::Tensor optional_input(const std::vector<at::Tensor>& inputs, size_t i) {
  return i < inputs.size() ? inputs[i] : at::Tensor();
}

/// The limits for the tokens that a model accepts.
struct TokenLimits {
  std::string model;
  int64_t vocab_size = 0, max_length = 0, types = 1;
  std::optional<int64_t> pad_token;  ///< if there is no mask, tokens with this id are padding
};

struct Tokens {
  at::Tensor ids;    ///< [N, T]
  at::Tensor mask;   ///< [N, 1, 1, T], false for padding; undefined if there is no padding
  at::Tensor types;  ///< [N, T]; undefined if all types are 0
};

/// Returns Tokens::mask for checked inputs. See read_tokens() for the parameters.
at::Tensor attention_mask(const at::Tensor& ids, const at::Tensor& mask, std::optional<int64_t> pad_token);

/// Checks the inputs of a text model.
/// Params: ids, types – int64 [N, T]. If `types` is undefined, all types are 0
///         mask – [N, T], 0 for padding. If it is undefined, TokenLimits::pad_token is used
/// Throws: c10::ValueError if a shape is wrong, if the text is too long or, on a CPU, if an id is outside the
///         vocabulary
Tokens read_tokens(const at::Tensor& ids, const at::Tensor& mask, const at::Tensor& types, const TokenLimits& limits);

/// Initializes weights like BERT and GPT-2. Linear layers and embeddings are drawn from a normal distribution with
/// standard deviation `std`. Biases and the embedding of the padding token are set to zero.
void init_normal(torch::nn::Module& module, double std);

// The functions below check options from code or from a file. Params: model – start of the error message

// Larger values are mistakes, and would only exhaust memory.
constexpr int64_t most_elements = 1 << 24, most_layers = 1 << 12;
struct NamedSize {
  const char* name;
  int64_t value;
  int64_t most = most_elements;
};
/// Throws: c10::ValueError if a value is outside 1 … most (the message names the first such value), or if `heads` does
///         not divide `width`
void check_sizes(const std::string& model, const std::vector<NamedSize>& sizes, int64_t width, int64_t heads);
/// Throws: c10::ValueError if a dropout rate is outside [0, 1)
void check_dropout(const std::string& model, std::initializer_list<double> rates);
/// Params: deviation – standard deviation of the initial weights; epsilon – epsilon of the norms
/// Throws: c10::ValueError if `deviation` is negative or not finite, or if `epsilon` is not positive or not finite
void check_numbers(const std::string& model, double deviation, double epsilon);
/// Throws: c10::ValueError if `pad_token` is not in the vocabulary
void check_pad_token(const std::string& model, int64_t pad_token, int64_t vocab_size);
/// Checks all options of bert(), distilbert() and gpt().
/// Throws: c10::ValueError for the first invalid option
void check_options(const std::string& model, const BertOptions& options);
void check_options(const std::string& model, const DistilBertOptions& options);
void check_options(const std::string& model, const GptOptions& options);

// Convolutional networks. vision/convolution.cpp implements the functions below.

/// torchvision's BasicConv2d: a convolution without bias, a batch norm and a ReLU.
class BasicConv final : public torch::nn::Module {
 public:
  explicit BasicConv(const torch::nn::Conv2dOptions& options);
  at::Tensor forward(const at::Tensor& x) { return bn_->forward(conv_->forward(x)).relu_(); }

 private:
  torch::nn::Conv2d conv_{nullptr};
  torch::nn::BatchNorm2d bn_{nullptr};
};
using Conv = std::shared_ptr<BasicConv>;

/// Returns a square convolution.
Conv basic_conv(int64_t in, int64_t out, int64_t kernel, int64_t padding = 0, int64_t stride = 1);

/// A block of an inception network: branches that read the same input. Its output is the concatenation of their
/// outputs.
class InceptionBlock : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};
using InceptionBlocks = std::vector<std::shared_ptr<InceptionBlock>>;

/// Base class of root modules with auxiliary outputs; see auxiliary.h.
class WithAuxiliaryOutputs {
 public:
  virtual ~WithAuxiliaryOutputs() = default;
  /// Returns the logits and, in training mode, the auxiliary logits.
  virtual std::vector<at::Tensor> forward_all(const at::Tensor& x) = 0;
  /// Names of all outputs in training mode.
  virtual std::vector<std::string> output_names() const = 0;
  virtual bool has_auxiliary_outputs() const = 0;
  virtual double auxiliary_weight() const = 0;
};

/// Draws the weights of all convolutions and linear layers from a normal distribution with mean 0 that ends at ±2.
/// Params: deviation – standard deviation for the layer of this name
void init_truncated_normal(torch::nn::Module& module, const std::function<double(const std::string& name)>& deviation);

/// Converts images that were normalized with ImageNet's mean and standard deviation to mean 0.5 and standard deviation
/// 0.5.
at::Tensor to_half_range(const at::Tensor& x);

/// Checks the options that the networks share.
/// Throws: c10::ValueError if a size is below 1, or if a dropout rate is outside [0, 1)
void check_network(const std::string& model, const std::vector<NamedSize>& sizes,
                   std::initializer_list<double> dropout);
/// Throws: c10::ValueError if to_half_range() is on for images that do not have three channels
void check_transform(const std::string& model, bool transform_input, int64_t in_channels);
/// Throws: c10::ValueError if `x` is no batch of images with `channels` channels, or if its sides are shorter than
///         `least`
void check_images(const std::string& model, const at::Tensor& x, int64_t channels, int64_t least);

/// A model whose number of outputs depends on the mode.
class AuxiliaryModel final : public ModelWrapper {
 public:
  AuxiliaryModel(const Model& model, std::shared_ptr<WithAuxiliaryOutputs> outputs)
      : ModelWrapper(model), outputs_(std::move(outputs)) {}
  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs) override;
  std::vector<std::string> outputs() const override;

 private:
  std::shared_ptr<WithAuxiliaryOutputs> outputs_;
};

/// Makes a Model of a root module with auxiliary outputs.
template <class Module>
Model model_with_auxiliary(std::shared_ptr<Module> module, const std::string& name) {
  return Model(name, std::make_shared<AuxiliaryModel>(Model::of(module, name), module));
}

}  // namespace bellows::models::layers
