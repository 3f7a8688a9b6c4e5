#pragma once

#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "bellows/models/blocks.h"
#include "bellows/models/head.h"

namespace bellows::models {
struct BertOptions;
struct DistilBertOptions;
struct GptOptions;
}  // namespace bellows::models

/// What the transformers of this component are made of. Names of parameters are torch::nn's.
namespace bellows::models::layers {

/// The root of a model whose blocks can be run by somebody else; see run_blocks_by().
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

/// The root of a model that ends with a linear layer; see forward_into().
class Headed {
 public:
  virtual ~Headed() = default;
  virtual bool has_head() const = 0;

 protected:
  at::Tensor scores(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias = {}) const;
};

/// torch::nn::Linear over at::linear: one operator with its bias, whose weight autocast casts once a step.
class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }
};
TORCH_MODULE(Linear);

/// Layer normalization over the last dim, by libtorch's kernels or by those of the component nn.
class LayerNormImpl : public torch::nn::Module {
 public:
  LayerNormImpl(int64_t features, double eps, bool fused = false);
  at::Tensor forward(const at::Tensor& x) { return normalized(x); }
  /// norm(residual + dropout(x)): one pass where it is fused.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual, double dropout);

  at::Tensor weight, bias;

 private:
  at::Tensor normalized(const at::Tensor& x) const;

  double eps_;
  bool fused_;
};
TORCH_MODULE(LayerNorm);

/// A function between two linear layers: "gelu", "gelu_new" (by tanh, as GPT-2's) or "relu".
enum class Activation { gelu, gelu_tanh, relu };
/// Throws: c10::ValueError – another name
Activation activation_of(const std::string& model, const std::string& name);
at::Tensor activate(const at::Tensor& x, Activation activation);
/// linear(activate(x)), saving x alone for backward where it is fused.
at::Tensor activated_linear(const at::Tensor& x, Activation activation, const at::Tensor& weight,
                            const at::Tensor& bias, bool fused);

/// Multi-head attention of what is projected already.
/// Shapes: query [N, T, heads·d]; key, value [N, S, heads·d]; mask broadcasts to [N, heads, T, S], true: look at; or undefined
///         → [N, T, heads·d]
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int64_t heads,
                     const at::Tensor& mask, bool causal, double dropout);

/// What read_tokens() may find in a model's input, and how.
struct TokenLimits {
  std::string model;
  int64_t rows = 1;  ///< 1: ids; 2: ids and mask; 3: and token types
  int64_t vocab_size = 0, max_length = 0, types = 1;
  std::optional<int64_t> pad_token;  ///< ids alone: these are padding
};

struct Tokens {
  at::Tensor ids;    ///< [N, T]
  at::Tensor mask;   ///< [N, 1, 1, T], true: a token; undefined: all are
  at::Tensor types;  ///< [N, T]; undefined: all of type 0
};

/// Throws: c10::ValueError – not int64 [N, T] or [N, rows, T]; too long; on a CPU: an id that is not in the vocabulary
Tokens read_tokens(const at::Tensor& input, const TokenLimits& limits);

/// Initial weights of BERT and GPT-2: linear layers and embeddings normal of this standard deviation, biases and the
/// padding's embedding zero.
void init_normal(torch::nn::Module& module, double std);

// Options that a model, or a file that describes one, says. Params: model – begins messages
constexpr int64_t most_elements = 1 << 24, most_layers = 1 << 12;  // more is a mistake, and would only use up memory
struct NamedSize {
  const char* name;
  int64_t value;
  int64_t most = most_elements;
};
/// Throws: c10::ValueError – names the first value that is not in 1 … most, or a width that `heads` does not divide
void check_sizes(const std::string& model, const std::vector<NamedSize>& sizes, int64_t width, int64_t heads);
/// Throws: c10::ValueError – outside [0, 1)
void check_dropout(const std::string& model, std::initializer_list<double> rates);
/// Params: deviation – of the first weights; epsilon – of norms
/// Throws: c10::ValueError – a deviation that is not finite or below 0, an epsilon that is not finite and above 0
void check_numbers(const std::string& model, double deviation, double epsilon);
/// Throws: c10::ValueError – not a token
void check_pad_token(const std::string& model, int64_t pad_token, int64_t vocab_size);
/// All that bert(), distilbert() and gpt() ask of their options. Throws: c10::ValueError – the first that is not so
void check_options(const std::string& model, const BertOptions& options);
void check_options(const std::string& model, const DistilBertOptions& options);
void check_options(const std::string& model, const GptOptions& options);

}  // namespace bellows::models::layers
