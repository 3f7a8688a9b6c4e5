#include "bellows/models/gpt.h"

#include <cmath>

#include "bellows/models/layers_impl.h"

namespace bellows::models {

namespace {

using layers::LayerNorm;

/// Hugging Face's Conv1D: a linear layer with a weight of shape [in, out].
class Conv1D final : public torch::nn::Module {
 public:
  Conv1D(int64_t in, int64_t out, double std) : torch::nn::Module("Conv1D") {
    weight = register_parameter("weight", torch::empty({in, out}).normal_(0, std));
    bias = register_parameter("bias", torch::zeros({out}));
  }
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight.t(), bias); }

  at::Tensor weight, bias;
};

/// The initial weights of layers that add to the residual stream decrease with the number of layers.
double residual_std(const GptOptions& o) {
  return o.initializer_range / std::sqrt(2 * static_cast<double>(o.n_layer));
}

class GptAttention final : public torch::nn::Module {
 public:
  explicit GptAttention(const GptOptions& o) : options_(o) {
    c_attn_ = register_module("c_attn", std::make_shared<Conv1D>(o.n_embd, 3 * o.n_embd, o.initializer_range));
    c_proj_ = register_module("c_proj", std::make_shared<Conv1D>(o.n_embd, o.n_embd, residual_std(o)));
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor all = c_attn_->forward(x);
    const auto qkv = all.split(all.size(2) / 3, 2);
    const at::Tensor y = layers::attention(qkv[0], qkv[1], qkv[2], options_.n_embd / options_.n_head, {},
                                           /*causal=*/true, is_training() ? options_.attn_pdrop : 0);
    return at::dropout(c_proj_->forward(y), options_.resid_pdrop, is_training());
  }

 private:
  GptOptions options_;
  std::shared_ptr<Conv1D> c_attn_, c_proj_;
};

class GptMlp final : public torch::nn::Module {
 public:
  explicit GptMlp(const GptOptions& o)
      : activation_(layers::activation_of("gpt", o.activation_function)), dropout_(o.resid_pdrop), fused_(o.fused) {
    const int64_t inner = o.n_inner.value_or(4 * o.n_embd);
    c_fc_ = register_module("c_fc", std::make_shared<Conv1D>(o.n_embd, inner, o.initializer_range));
    c_proj_ = register_module("c_proj", std::make_shared<Conv1D>(inner, o.n_embd, residual_std(o)));
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y =
        layers::activated_linear(c_fc_->forward(x), activation_, c_proj_->weight.t(), c_proj_->bias, fused_);
    return at::dropout(y, dropout_, is_training());
  }

 private:
  std::shared_ptr<Conv1D> c_fc_, c_proj_;
  layers::Activation activation_;
  double dropout_;
  bool fused_;
};

class GptBlock final : public torch::nn::Module {
 public:
  explicit GptBlock(const GptOptions& o) {
    ln_1_ = register_module("ln_1", LayerNorm(o.n_embd, o.layer_norm_epsilon, o.fused));
    attn_ = register_module("attn", std::make_shared<GptAttention>(o));
    ln_2_ = register_module("ln_2", LayerNorm(o.n_embd, o.layer_norm_epsilon, o.fused));
    mlp_ = register_module("mlp", std::make_shared<GptMlp>(o));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = attn_->forward(ln_1_->forward(x)) + x;
    return y + mlp_->forward(ln_2_->forward(y));
  }

 private:
  LayerNorm ln_1_{nullptr}, ln_2_{nullptr};
  std::shared_ptr<GptAttention> attn_;
  std::shared_ptr<GptMlp> mlp_;
};

class Gpt final : public torch::nn::Module, public layers::Blocks, public layers::Headed {
 public:
  explicit Gpt(const GptOptions& o) : options_(o) {
    auto base = register_module("transformer", std::make_shared<torch::nn::Module>("GPT2Model"));
    wte_ = base->register_module("wte", torch::nn::Embedding(o.vocab_size, o.n_embd));
    wpe_ = base->register_module("wpe", torch::nn::Embedding(o.n_positions, o.n_embd));
    auto list = base->register_module("h", torch::nn::ModuleList());
    for (int64_t i = 0; i < o.n_layer; ++i) {
      blocks_.push_back(std::make_shared<GptBlock>(o));
      list->push_back(blocks_.back());
    }
    ln_f_ = base->register_module("ln_f", LayerNorm(o.n_embd, o.layer_norm_epsilon, o.fused));
    layers::init_normal(*this, o.initializer_range);
  }

  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = embed(input);
    for (const auto& block : blocks_) x = run_block(block, x);
    return head(x);
  }

  std::vector<ModelPart> parts() override {
    using Inputs = std::vector<at::Tensor>;
    std::vector<at::Tensor> last = layers::tensors_of({ln_f_.get()});
    if (options_.logits) last.push_back(wte_->weight);
    return layers::parts_of(
        {"embeddings", layers::tensors_of({wte_.get(), wpe_.get()}),
         [this](const at::Tensor&, const Inputs& inputs) { return embed(inputs.at(0)); }},
        "h", blocks_, [this](const auto& block, const at::Tensor& x, const Inputs&) { return run_block(block, x); },
        {"head", std::move(last), [this](const at::Tensor& x, const Inputs&) { return head(x); }});
  }

  int64_t block_count() const override { return options_.n_layer; }
  bool has_head() const override { return options_.logits; }

 private:
  at::Tensor embed(const at::Tensor& input) {
    const layers::Tokens tokens = layers::read_tokens(
        input, {}, {},
        {.model = "gpt", .vocab_size = options_.vocab_size, .max_length = options_.n_positions, .pad_token = {}});
    const at::Tensor embedded = wte_->forward(tokens.ids) + wpe_->weight.slice(0, 0, tokens.ids.size(1));
    return at::dropout(embedded, options_.embd_pdrop, is_training());
  }
  at::Tensor run_block(const std::shared_ptr<GptBlock>& block, const at::Tensor& x) const {
    return run([block](const at::Tensor& y) { return block->forward(y); }, x);
  }
  at::Tensor head(const at::Tensor& x) {
    const at::Tensor y = ln_f_->forward(x);
    return options_.logits ? scores(y, wte_->weight) : y;
  }

  GptOptions options_;
  torch::nn::Embedding wte_{nullptr}, wpe_{nullptr};
  std::vector<std::shared_ptr<GptBlock>> blocks_;
  LayerNorm ln_f_{nullptr};
};

}  // namespace

void layers::check_options(const std::string& model, const GptOptions& options) {
  const GptOptions& o = options;
  check_sizes(model,
              {{"vocab_size", o.vocab_size},
               {"n_positions", o.n_positions},
               {"n_embd", o.n_embd},
               {"n_layer", o.n_layer, most_layers},
               {"n_inner", o.n_inner.value_or(1)}},
              o.n_embd, o.n_head);
  check_dropout(model, {o.resid_pdrop, o.embd_pdrop, o.attn_pdrop});
  check_numbers(model, o.initializer_range, o.layer_norm_epsilon);
  activation_of(model, o.activation_function);
}

Model gpt(const GptOptions& options) {
  layers::check_options("gpt", options);
  return Model::of(std::make_shared<Gpt>(options), "gpt");
}

}  // namespace bellows::models
