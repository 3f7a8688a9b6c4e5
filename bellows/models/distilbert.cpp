#include "bellows/models/distilbert.h"

#include "bellows/models/layers_impl.h"

namespace bellows::models {

namespace {

using layers::LayerNorm;
using layers::Linear;
using layers::Tokens;

constexpr double distilbert_eps = 1e-12;

class DistilBertEmbeddings final : public torch::nn::Module {
 public:
  explicit DistilBertEmbeddings(const DistilBertOptions& o) : dropout_(o.dropout) {
    using torch::nn::EmbeddingOptions;
    word_embeddings = register_module(
        "word_embeddings", torch::nn::Embedding(EmbeddingOptions(o.vocab_size, o.dim).padding_idx(o.pad_token_id)));
    position_ = register_module("position_embeddings", torch::nn::Embedding(o.max_position_embeddings, o.dim));
    norm_ = register_module("LayerNorm", LayerNorm(o.dim, distilbert_eps, o.fused));
  }

  at::Tensor forward(const Tokens& tokens) {
    const at::Tensor x = word_embeddings->forward(tokens.ids) + position_->weight.slice(0, 0, tokens.ids.size(1));
    return at::dropout(norm_->forward(x), dropout_, is_training());
  }

  torch::nn::Embedding word_embeddings{nullptr};

 private:
  torch::nn::Embedding position_{nullptr};
  LayerNorm norm_{nullptr};
  double dropout_;
};

class DistilBertSelfAttention final : public torch::nn::Module {
 public:
  explicit DistilBertSelfAttention(const DistilBertOptions& o)
      : head_size_(o.dim / o.n_heads), dropout_(o.attention_dropout) {
    q_ = register_module("q_lin", Linear(o.dim, o.dim));
    k_ = register_module("k_lin", Linear(o.dim, o.dim));
    v_ = register_module("v_lin", Linear(o.dim, o.dim));
    out_ = register_module("out_lin", Linear(o.dim, o.dim));
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    return out_->forward(layers::attention(q_->forward(x), k_->forward(x), v_->forward(x), head_size_, mask,
                                           /*causal=*/false, is_training() ? dropout_ : 0));
  }

 private:
  Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, out_{nullptr};
  int64_t head_size_;
  double dropout_;
};

class DistilBertFfn final : public torch::nn::Module {
 public:
  explicit DistilBertFfn(const DistilBertOptions& o)
      : activation_(layers::activation_of("distilbert", o.activation)), fused_(o.fused) {
    lin1_ = register_module("lin1", Linear(o.dim, o.hidden_dim));
    lin2_ = register_module("lin2", Linear(o.hidden_dim, o.dim));
  }
  at::Tensor forward(const at::Tensor& x) {
    return layers::activated_linear(lin1_->forward(x), activation_, lin2_->weight, lin2_->bias, fused_);
  }

 private:
  Linear lin1_{nullptr}, lin2_{nullptr};
  layers::Activation activation_;
  bool fused_;
};

class DistilBertBlock final : public torch::nn::Module {
 public:
  explicit DistilBertBlock(const DistilBertOptions& o) : dropout_(o.dropout) {
    attention_ = register_module("attention", std::make_shared<DistilBertSelfAttention>(o));
    sa_layer_norm_ = register_module("sa_layer_norm", LayerNorm(o.dim, distilbert_eps, o.fused));
    ffn_ = register_module("ffn", std::make_shared<DistilBertFfn>(o));
    output_layer_norm_ = register_module("output_layer_norm", LayerNorm(o.dim, distilbert_eps, o.fused));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    const at::Tensor y = sa_layer_norm_->forward(attention_->forward(x, mask), x, /*dropout=*/0);
    return output_layer_norm_->forward(ffn_->forward(y), y, dropout_);
  }

 private:
  std::shared_ptr<DistilBertSelfAttention> attention_;
  LayerNorm sa_layer_norm_{nullptr};
  std::shared_ptr<DistilBertFfn> ffn_;
  LayerNorm output_layer_norm_{nullptr};
  double dropout_;
};

class DistilBert final : public torch::nn::Module, public layers::Blocks {
 public:
  explicit DistilBert(const DistilBertOptions& o)
      : options_(o), activation_(layers::activation_of("distilbert", o.activation)) {
    torch::nn::Module* base = this;
    if (o.head != TextHead::hidden_states)
      base = register_module("distilbert", std::make_shared<torch::nn::Module>("DistilBertModel")).get();
    embeddings_ = base->register_module("embeddings", std::make_shared<DistilBertEmbeddings>(o));
    auto transformer = base->register_module("transformer", std::make_shared<torch::nn::Module>("Transformer"));
    auto list = transformer->register_module("layer", torch::nn::ModuleList());
    for (int64_t i = 0; i < o.n_layers; ++i) {
      blocks_.push_back(std::make_shared<DistilBertBlock>(o));
      list->push_back(blocks_.back());
    }
    if (o.head == TextHead::classifier) {
      pre_classifier_ = register_module("pre_classifier", Linear(o.dim, o.dim));
      classifier_ = register_module("classifier", Linear(o.dim, o.num_labels));
    } else if (o.head != TextHead::hidden_states) {
      vocab_transform_ = register_module("vocab_transform", Linear(o.dim, o.dim));
      vocab_layer_norm_ = register_module("vocab_layer_norm", LayerNorm(o.dim, distilbert_eps, o.fused));
      // The weight is shared with the embedding.
      auto projector = register_module("vocab_projector", std::make_shared<torch::nn::Module>("Linear"));
      vocab_bias_ = projector->register_parameter("bias", torch::zeros({o.vocab_size}));
    }
    layers::init_normal(*this, o.initializer_range);
  }

  at::Tensor forward(const std::vector<at::Tensor>& inputs) {
    const Tokens tokens = read_inputs(inputs);
    at::Tensor x = embeddings_->forward(tokens);
    for (const auto& block : blocks_) x = run_layer(block, x, tokens.mask);
    return head(x);
  }

  std::vector<ModelPart> parts() override {
    using Inputs = std::vector<at::Tensor>;
    return layers::parts_of(
        {"embeddings", layers::tensors_of({embeddings_.get()}),
         [this](const at::Tensor&, const Inputs& inputs) { return embeddings_->forward(read_inputs(inputs)); }},
        "layer", blocks_,
        [this](const auto& layer, const at::Tensor& x, const Inputs& inputs) {
          return run_layer(layer, x,
                           layers::attention_mask(inputs.at(0), layers::optional_input(inputs, 1), pad_token()));
        },
        {"head", head_tensors(), [this](const at::Tensor& x, const Inputs&) { return head(x); }});
  }

  int64_t block_count() const override { return options_.n_layers; }

 private:
  /// Tokens with this id are padding if there is no mask.
  std::optional<int64_t> pad_token() const {
    return options_.mask_padding ? std::optional(options_.pad_token_id) : std::nullopt;
  }
  /// Params: inputs – ids and mask. The mask may be undefined or missing
  Tokens read_inputs(const std::vector<at::Tensor>& inputs) const {
    const DistilBertOptions& o = options_;
    return layers::read_tokens(inputs.at(0), layers::optional_input(inputs, 1), {},
                               {.model = "distilbert",
                                .vocab_size = o.vocab_size,
                                .max_length = o.max_position_embeddings,
                                .pad_token = pad_token()});
  }
  at::Tensor run_layer(const std::shared_ptr<DistilBertBlock>& layer, const at::Tensor& x,
                       const at::Tensor& mask) const {
    return run([layer, mask](const at::Tensor& y) { return layer->forward(y, mask); }, x);
  }
  std::vector<at::Tensor> head_tensors() const {
    std::vector<const torch::nn::Module*> modules;
    if (!pre_classifier_.is_empty()) modules.push_back(pre_classifier_.get());
    if (!classifier_.is_empty()) modules.push_back(classifier_.get());
    if (!vocab_transform_.is_empty()) modules.push_back(vocab_transform_.get());
    if (!vocab_layer_norm_.is_empty()) modules.push_back(vocab_layer_norm_.get());
    std::vector<at::Tensor> tensors = layers::tensors_of(modules);
    if (vocab_bias_.defined()) tensors.push_back(vocab_bias_);
    if (options_.head == TextHead::masked_lm) tensors.push_back(embeddings_->word_embeddings->weight);
    return tensors;
  }
  at::Tensor head(const at::Tensor& x) {
    if (options_.head == TextHead::hidden_states) return x;
    if (options_.head == TextHead::classifier) {
      const at::Tensor first = at::relu(pre_classifier_->forward(x.select(1, 0)));
      return classifier_->forward(at::dropout(first, options_.seq_classif_dropout, is_training()));
    }
    const at::Tensor y = vocab_layer_norm_->forward(layers::activate(vocab_transform_->forward(x), activation_));
    if (options_.head == TextHead::masked_lm_hidden) return y;
    return at::linear(y, embeddings_->word_embeddings->weight, vocab_bias_);
  }

  DistilBertOptions options_;
  layers::Activation activation_;
  std::shared_ptr<DistilBertEmbeddings> embeddings_;
  std::vector<std::shared_ptr<DistilBertBlock>> blocks_;
  Linear pre_classifier_{nullptr}, classifier_{nullptr}, vocab_transform_{nullptr};
  LayerNorm vocab_layer_norm_{nullptr};
  at::Tensor vocab_bias_;
};

}  // namespace

void layers::check_options(const std::string& model, const DistilBertOptions& options) {
  const DistilBertOptions& o = options;
  check_sizes(model,
              {{"num_labels", o.num_labels},
               {"vocab_size", o.vocab_size},
               {"dim", o.dim},
               {"n_layers", o.n_layers, most_layers},
               {"hidden_dim", o.hidden_dim},
               {"max_position_embeddings", o.max_position_embeddings}},
              o.dim, o.n_heads);
  check_dropout(model, {o.dropout, o.attention_dropout, o.seq_classif_dropout});
  check_pad_token(model, o.pad_token_id, o.vocab_size);
  TORCH_CHECK_VALUE(o.head != TextHead::pooled,
                    "distilbert: the head pooled is not supported, because DistilBERT has no pooler. Use hidden_states "
                    "and select the row of the first token.");
  check_numbers(model, o.initializer_range, 1e-12);
  activation_of(model, o.activation);
}

Model distilbert(const DistilBertOptions& options) {
  layers::check_options("distilbert", options);
  const auto net = std::make_shared<DistilBert>(options);
  return Model("distilbert", net, {{"input_ids"}, {"attention_mask", true}}, {layers::output_name(options.head)},
               [net](const std::vector<at::Tensor>& x) { return std::vector<at::Tensor>{net->forward(x)}; });
}

}  // namespace bellows::models
