#pragma once

#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "bellows/models/blocks.h"
#include "bellows/models/head.h"
#include "bellows/models/tokens.h"

namespace bellows::models {
struct BertOptions;
struct DistilBertOptions;
struct GptOptions;
}  // namespace bellows::models

/// Building blocks of the transformers in this component. Parameter names are those of torch::nn.
namespace bellows::models::layers {

/// Base of root modules whose blocks can be run by a callback; see run_blocks_by().
class Blocks {
 public:
  virtual ~Blocks() = default;
  virtual int64_t block_count() const = 0;
  void run_by(RunBlock run) { run_ = std::move(run); }

 protected:
  at::Tensor run(const Block& block, const at::Tensor& input) const { return run_ ? run_(block, input) : block(input); }

 private:
  RunBlock run_;
};

/// Base of root modules that end with a linear layer; see forward_with_head().
class Headed {
 public:
  virtual ~Headed() = default;
  virtual bool has_head() const = 0;

 protected:
  at::Tensor scores(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias = {}) const;
};

/// torch::nn::Linear with at::linear: one operator that includes the bias, whose weight autocast casts once per step.
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
  /// Computes norm(residual + dropout(x)); one pass if `fused` is set.
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

/// Multi-head attention on projected queries, keys and values.
/// Shapes: query [N, T, heads·d]; key, value [N, S, heads·d]; mask broadcasts to [N, heads, T, S] (true: attend) or is
///         undefined → [N, T, heads·d]
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int64_t heads,
                     const at::Tensor& mask, bool causal, double dropout);

/// The name of a model's output in transformers.
std::string output_name(TextHead head);

/// The tokens that a model accepts.
struct TokenLimits {
  std::string model;
  int64_t vocab_size = 0, max_length = 0, types = 1;
  std::optional<int64_t> pad_token;  ///< without a mask, these ids are padding
};

struct Tokens {
  at::Tensor ids;    ///< [N, T]
  at::Tensor mask;   ///< [N, 1, 1, T], true: a token; undefined: no padding
  at::Tensor types;  ///< [N, T]; undefined: all of type 0
};

/// Checks the inputs of a text model.
/// Params: ids, types – int64 [N, T]; if types is undefined, all are 0
///         mask – [N, T], 0: padding; if undefined, TokenLimits::pad_token applies
/// Throws: c10::ValueError if a shape is wrong, the text is too long or, on a CPU, an id is outside the vocabulary
Tokens read_tokens(const at::Tensor& ids, const at::Tensor& mask, const at::Tensor& types, const TokenLimits& limits);

/// Initializes weights like BERT and GPT-2: linear layers and embeddings from a normal distribution with this standard
/// deviation, biases and the padding's embedding with zero.
void init_normal(torch::nn::Module& module, double std);

// Checks of options, given in code or in a file. Params: model – start of the message

// Larger values are mistakes that would only exhaust memory.
constexpr int64_t most_elements = 1 << 24, most_layers = 1 << 12;
struct NamedSize {
  const char* name;
  int64_t value;
  int64_t most = most_elements;
};
/// Throws: c10::ValueError if a value is outside 1 … most (the message names the first one), or `heads` does not divide
///         width
void check_sizes(const std::string& model, const std::vector<NamedSize>& sizes, int64_t width, int64_t heads);
/// Throws: c10::ValueError if a rate is outside [0, 1)
void check_dropout(const std::string& model, std::initializer_list<double> rates);
/// Params: deviation – of the initial weights; epsilon – of norms
/// Throws: c10::ValueError if deviation is negative or not finite, or epsilon is not positive or not finite
void check_numbers(const std::string& model, double deviation, double epsilon);
/// Throws: c10::ValueError if it is not a token of the vocabulary
void check_pad_token(const std::string& model, int64_t pad_token, int64_t vocab_size);
/// Checks all options of bert(), distilbert() and gpt(). Throws: c10::ValueError for the first invalid one
void check_options(const std::string& model, const BertOptions& options);
void check_options(const std::string& model, const DistilBertOptions& options);
void check_options(const std::string& model, const GptOptions& options);

}  // namespace bellows::models::layers
