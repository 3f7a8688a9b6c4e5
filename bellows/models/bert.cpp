#include "bellows/models/bert.h"

#include "bellows/models/layers_impl.h"

namespace bellows::models {

namespace {

using layers::LayerNorm;
using layers::Linear;
using layers::Tokens;

class BertEmbeddings final : public torch::nn::Module {
 public:
  explicit BertEmbeddings(const BertOptions& o) : dropout_(o.hidden_dropout_prob) {
    using torch::nn::Embedding;
    using torch::nn::EmbeddingOptions;
    word_embeddings = register_module(
        "word_embeddings", Embedding(EmbeddingOptions(o.vocab_size, o.hidden_size).padding_idx(o.pad_token_id)));
    position_ = register_module("position_embeddings", Embedding(o.max_position_embeddings, o.hidden_size));
    type_ = register_module("token_type_embeddings", Embedding(o.type_vocab_size, o.hidden_size));
    norm_ = register_module("LayerNorm", LayerNorm(o.hidden_size, o.layer_norm_eps, o.fused));
  }

  at::Tensor forward(const Tokens& tokens) {
    const at::Tensor words = word_embeddings->forward(tokens.ids);
    const at::Tensor types = tokens.types.defined() ? type_->forward(tokens.types) : type_->weight[0];
    const at::Tensor x = words + types + position_->weight.slice(0, 0, tokens.ids.size(1));
    return at::dropout(norm_->forward(x), dropout_, is_training());
  }

  torch::nn::Embedding word_embeddings{nullptr};

 private:
  torch::nn::Embedding position_{nullptr}, type_{nullptr};
  LayerNorm norm_{nullptr};
  double dropout_;
};

class BertSelfAttention final : public torch::nn::Module {
 public:
  explicit BertSelfAttention(const BertOptions& o)
      : head_size_(o.hidden_size / o.num_attention_heads), dropout_(o.attention_probs_dropout_prob) {
    query_ = register_module("query", Linear(o.hidden_size, o.hidden_size));
    key_ = register_module("key", Linear(o.hidden_size, o.hidden_size));
    value_ = register_module("value", Linear(o.hidden_size, o.hidden_size));
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    return layers::attention(query_->forward(x), key_->forward(x), value_->forward(x), head_size_, mask,
                             /*causal=*/false, is_training() ? dropout_ : 0);
  }

 private:
  Linear query_{nullptr}, key_{nullptr}, value_{nullptr};
  int64_t head_size_;
  double dropout_;
};

/// A dense layer, dropout, the residual and a norm, used after the attention and after the activation.
class BertOutput final : public torch::nn::Module {
 public:
  BertOutput(const BertOptions& o, int64_t width) : dropout_(o.hidden_dropout_prob), fused_(o.fused) {
    dense_ = register_module("dense", Linear(width, o.hidden_size));
    norm_ = register_module("LayerNorm", LayerNorm(o.hidden_size, o.layer_norm_eps, o.fused));
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual) {
    return norm_->forward(dense_->forward(x), residual, dropout_);
  }
  at::Tensor forward(const at::Tensor& x, layers::Activation activation, const at::Tensor& residual) {
    const at::Tensor y = layers::activated_linear(x, activation, dense_->weight, dense_->bias, fused_);
    return norm_->forward(y, residual, dropout_);
  }

 private:
  Linear dense_{nullptr};
  LayerNorm norm_{nullptr};
  double dropout_;
  bool fused_;
};

class BertAttention final : public torch::nn::Module {
 public:
  explicit BertAttention(const BertOptions& o) {
    self_ = register_module("self", std::make_shared<BertSelfAttention>(o));
    output_ = register_module("output", std::make_shared<BertOutput>(o, o.hidden_size));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    return output_->forward(self_->forward(x, mask), x);
  }

 private:
  std::shared_ptr<BertSelfAttention> self_;
  std::shared_ptr<BertOutput> output_;
};

class BertIntermediate final : public torch::nn::Module {
 public:
  explicit BertIntermediate(const BertOptions& o) {
    dense_ = register_module("dense", Linear(o.hidden_size, o.intermediate_size));
  }
  at::Tensor forward(const at::Tensor& x) { return dense_->forward(x); }

 private:
  Linear dense_{nullptr};
};

class BertLayer final : public torch::nn::Module {
 public:
  explicit BertLayer(const BertOptions& o) : activation_(layers::activation_of("bert", o.hidden_act)) {
    attention_ = register_module("attention", std::make_shared<BertAttention>(o));
    intermediate_ = register_module("intermediate", std::make_shared<BertIntermediate>(o));
    output_ = register_module("output", std::make_shared<BertOutput>(o, o.intermediate_size));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    const at::Tensor y = attention_->forward(x, mask);
    return output_->forward(intermediate_->forward(y), activation_, y);
  }

 private:
  std::shared_ptr<BertAttention> attention_;
  std::shared_ptr<BertIntermediate> intermediate_;
  std::shared_ptr<BertOutput> output_;
  layers::Activation activation_;
};

class BertEncoder final : public torch::nn::Module {
 public:
  explicit BertEncoder(const BertOptions& o) {
    auto list = register_module("layer", torch::nn::ModuleList());
    for (int64_t i = 0; i < o.num_hidden_layers; ++i) {
      layer.push_back(std::make_shared<BertLayer>(o));
      list->push_back(layer.back());
    }
  }
  std::vector<std::shared_ptr<BertLayer>> layer;
};

class BertPooler final : public torch::nn::Module {
 public:
  explicit BertPooler(const BertOptions& o) { dense_ = register_module("dense", Linear(o.hidden_size, o.hidden_size)); }
  at::Tensor forward(const at::Tensor& x) { return dense_->forward(x.select(1, 0)).tanh(); }

 private:
  Linear dense_{nullptr};
};

/// "BertLMPredictionHead": a dense layer, activation and norm, then the embedding's weight with a separate bias.
class BertPredictions final : public torch::nn::Module {
 public:
  explicit BertPredictions(const BertOptions& o) : activation_(layers::activation_of("bert", o.hidden_act)) {
    bias_ = register_parameter("bias", torch::zeros({o.vocab_size}));
    auto transform = register_module("transform", std::make_shared<torch::nn::Module>("BertPredictionHeadTransform"));
    dense_ = transform->register_module("dense", Linear(o.hidden_size, o.hidden_size));
    norm_ = transform->register_module("LayerNorm", LayerNorm(o.hidden_size, o.layer_norm_eps, o.fused));
  }
  at::Tensor hidden(const at::Tensor& x) { return norm_->forward(layers::activate(dense_->forward(x), activation_)); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight) { return at::linear(hidden(x), weight, bias_); }

 private:
  at::Tensor bias_;
  Linear dense_{nullptr};
  LayerNorm norm_{nullptr};
  layers::Activation activation_;
};

bool is_masked_lm(TextHead head) {
  return head == TextHead::masked_lm || head == TextHead::masked_lm_hidden;
}

class Bert final : public torch::nn::Module, public layers::Blocks {
 public:
  explicit Bert(const BertOptions& options) : options_(options) {
    const bool bare = options.head == TextHead::hidden_states || options.head == TextHead::pooled;
    torch::nn::Module* base = this;
    if (!bare) base = register_module("bert", std::make_shared<torch::nn::Module>("BertModel")).get();
    embeddings_ = base->register_module("embeddings", std::make_shared<BertEmbeddings>(options));
    encoder_ = base->register_module("encoder", std::make_shared<BertEncoder>(options));
    if (is_masked_lm(options.head)) {
      auto cls = register_module("cls", std::make_shared<torch::nn::Module>("BertOnlyMLMHead"));
      predictions_ = cls->register_module("predictions", std::make_shared<BertPredictions>(options));
    } else {
      pooler_ = base->register_module("pooler", std::make_shared<BertPooler>(options));
    }
    if (options.head == TextHead::classifier)
      classifier_ = register_module("classifier", Linear(options.hidden_size, options.num_labels));
    layers::init_normal(*this, options.initializer_range);
  }

  at::Tensor forward(const std::vector<at::Tensor>& inputs) {
    const Tokens tokens = read_inputs(inputs);
    at::Tensor x = embeddings_->forward(tokens);
    for (const auto& layer : encoder_->layer) x = run_layer(layer, x, tokens.mask);
    return head(x);
  }

  std::vector<ModelPart> parts() override {
    using Inputs = std::vector<at::Tensor>;
    return layers::parts_of(
        {"embeddings", layers::tensors_of({embeddings_.get()}),
         [this](const at::Tensor&, const Inputs& inputs) { return embeddings_->forward(read_inputs(inputs)); }},
        "layer", encoder_->layer,
        [this](const auto& layer, const at::Tensor& x, const Inputs& inputs) {
          return run_layer(layer, x,
                           layers::attention_mask(inputs.at(0), layers::optional_input(inputs, 1), pad_token()));
        },
        {"head", head_tensors(), [this](const at::Tensor& x, const Inputs&) { return head(x); }});
  }

  int64_t block_count() const override { return options_.num_hidden_layers; }

 private:
  /// Tokens with this id are padding if there is no mask.
  std::optional<int64_t> pad_token() const {
    return options_.mask_padding ? std::optional(options_.pad_token_id) : std::nullopt;
  }
  /// Params: inputs – ids, mask and types. The last two may be undefined or missing
  Tokens read_inputs(const std::vector<at::Tensor>& inputs) const {
    const BertOptions& o = options_;
    return layers::read_tokens(inputs.at(0), layers::optional_input(inputs, 1), layers::optional_input(inputs, 2),
                               {.model = "bert",
                                .vocab_size = o.vocab_size,
                                .max_length = o.max_position_embeddings,
                                .types = o.type_vocab_size,
                                .pad_token = pad_token()});
  }
  at::Tensor run_layer(const std::shared_ptr<BertLayer>& layer, const at::Tensor& x, const at::Tensor& mask) const {
    return run([layer, mask](const at::Tensor& y) { return layer->forward(y, mask); }, x);
  }
  std::vector<at::Tensor> head_tensors() const {
    std::vector<const torch::nn::Module*> modules;
    if (pooler_) modules.push_back(pooler_.get());
    if (predictions_) modules.push_back(predictions_.get());
    if (!classifier_.is_empty()) modules.push_back(classifier_.get());
    std::vector<at::Tensor> tensors = layers::tensors_of(modules);
    if (options_.head == TextHead::masked_lm) tensors.push_back(embeddings_->word_embeddings->weight);
    return tensors;
  }
  at::Tensor head(const at::Tensor& x) {
    switch (options_.head) {
      case TextHead::pooled:
        return pooler_->forward(x);
      case TextHead::classifier: {
        const double rate = options_.classifier_dropout.value_or(options_.hidden_dropout_prob);
        return classifier_->forward(at::dropout(pooler_->forward(x), rate, is_training()));
      }
      case TextHead::masked_lm:
        return predictions_->forward(x, embeddings_->word_embeddings->weight);
      case TextHead::masked_lm_hidden:
        return predictions_->hidden(x);
      default:
        return x;
    }
  }

  BertOptions options_;
  std::shared_ptr<BertEmbeddings> embeddings_;
  std::shared_ptr<BertEncoder> encoder_;
  std::shared_ptr<BertPooler> pooler_;
  std::shared_ptr<BertPredictions> predictions_;
  Linear classifier_{nullptr};
};

}  // namespace

void layers::check_options(const std::string& model, const BertOptions& options) {
  const BertOptions& o = options;
  check_sizes(model,
              {{"num_labels", o.num_labels},
               {"vocab_size", o.vocab_size},
               {"hidden_size", o.hidden_size},
               {"num_hidden_layers", o.num_hidden_layers, most_layers},
               {"intermediate_size", o.intermediate_size},
               {"max_position_embeddings", o.max_position_embeddings},
               {"type_vocab_size", o.type_vocab_size}},
              o.hidden_size, o.num_attention_heads);
  check_dropout(model, {o.hidden_dropout_prob, o.attention_probs_dropout_prob,
                        o.classifier_dropout.value_or(o.hidden_dropout_prob)});
  check_pad_token(model, o.pad_token_id, o.vocab_size);
  check_numbers(model, o.initializer_range, o.layer_norm_eps);
  activation_of(model, o.hidden_act);
}

Model bert(const BertOptions& options) {
  layers::check_options("bert", options);
  const auto net = std::make_shared<Bert>(options);
  return Model("bert", net, {{"input_ids"}, {"attention_mask", true}, {"token_type_ids", true}},
               {layers::output_name(options.head)},
               [net](const std::vector<at::Tensor>& x) { return std::vector<at::Tensor>{net->forward(x)}; });
}

BertOptions bert_base() {
  return {};
}

BertOptions bert_20m() {
  return {.hidden_size = 384, .num_hidden_layers = 6, .num_attention_heads = 6, .intermediate_size = 1024};
}

}  // namespace bellows::models
