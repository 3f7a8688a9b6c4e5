#include <ATen/ops/scaled_dot_product_attention.h>

#include <cmath>
#include <utility>

#include "bellows/core/exporting.h"
#include "bellows/models/layers_impl.h"
#include "bellows/nn/activation.h"
#include "bellows/nn/dropout_norm.h"
#include "bellows/nn/norm.h"

namespace bellows::models {

int64_t run_blocks_by(const Model& model, RunBlock run) {
  auto* blocks = dynamic_cast<layers::Blocks*>(model.module_or_null().get());
  if (!blocks) return 0;
  blocks->run_by(std::move(run));
  return blocks->block_count();
}

ModelParts model_parts(const Model& model) {
  auto* blocks = dynamic_cast<layers::Blocks*>(model.module_or_null().get());
  ModelParts result{.model = model, .parts = blocks ? blocks->parts() : std::vector<ModelPart>()};
  TORCH_CHECK_VALUE(
      !result.parts.empty(), "model_parts: model \"", model.name(),
      "\" cannot be divided into a sequence of parts. gpt(), bert(), distilbert() and encoder_decoder() support "
      "it. Describe another model with a list of modules (parallel/pipeline/stages.h).");
  return result;
}

namespace {

/// The head for the current forward pass on this thread.
struct OtherHead {
  const layers::Headed* model = nullptr;
  const Head* head = nullptr;
};
thread_local OtherHead other_head;

}  // namespace

at::Tensor forward_with_head(const Model& model, const at::Tensor& input, const Head& head) {
  const auto* headed = dynamic_cast<const layers::Headed*>(model.module_or_null().get());
  if (!headed || !headed->has_head()) return {};
  struct Installed {
    explicit Installed(OtherHead mine) : before(std::exchange(other_head, mine)) {}
    ~Installed() { other_head = before; }
    OtherHead before;
  } const installed({headed, &head});
  return model.forward(input);
}

namespace layers {

std::vector<at::Tensor> tensors_of(const std::vector<const torch::nn::Module*>& modules) {
  std::vector<at::Tensor> tensors;
  for (const torch::nn::Module* module : modules) {
    for (const std::vector<at::Tensor>& list : {module->parameters(), module->buffers()})
      tensors.insert(tensors.end(), list.begin(), list.end());
  }
  return tensors;
}

at::Tensor Headed::scores(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias) const {
  if (other_head.model == this) return (*other_head.head)(hidden, weight, bias);
  return at::linear(hidden, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

LayerNormImpl::LayerNormImpl(int64_t features, double eps, bool fused) : eps_(eps), fused_(fused) {
  weight = register_parameter("weight", torch::ones({features}));
  bias = register_parameter("bias", torch::zeros({features}));
}

at::Tensor LayerNormImpl::normalized(const at::Tensor& x) const {
  return fused_ ? bellows::nn::layer_norm(x, weight.sizes(), weight, bias, eps_)
                : at::layer_norm(x, weight.sizes(), weight, bias, eps_);
}

at::Tensor LayerNormImpl::forward(const at::Tensor& x, const at::Tensor& residual, double dropout) {
  if (!fused_) return normalized(at::dropout(x, dropout, is_training()) + residual);
  return bellows::nn::dropout_add_norm(x, residual, weight, bias,
                                       {.p = dropout, .training = is_training(), .eps = eps_});
}

Activation activation_of(const std::string& model, const std::string& name) {
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return Activation::gelu_tanh;
  TORCH_CHECK_VALUE(name == "relu", model, R"(: expected the activation "gelu", "gelu_new" or "relu", got ")", name,
                    "\".");
  return Activation::relu;
}

at::Tensor activate(const at::Tensor& x, Activation activation) {
  if (activation == Activation::relu) return at::relu(x);
  return at::gelu(x, activation == Activation::gelu ? "none" : "tanh");
}

at::Tensor activated_linear(const at::Tensor& x, Activation activation, const at::Tensor& weight,
                            const at::Tensor& bias, bool fused) {
  if (fused && activation != Activation::relu)
    return bellows::nn::gelu_linear(x, weight, bias, {.tanh = activation == Activation::gelu_tanh});
  return at::linear(activate(x, activation), weight, bias);
}

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int64_t d,
                     const at::Tensor& mask, bool causal, double dropout) {
  TORCH_CHECK_VALUE(query.size(2) % d == 0, "attention: expected queries for complete heads of width ", d,
                    ", got a width of ", query.size(2),
                    ". With tensor parallelism, the number of ranks must divide the number of heads.");
  const auto split = [&](const at::Tensor& t) {
    return t.view({t.size(0), t.size(1), t.size(2) / d, d}).transpose(1, 2);
  };
  const at::Tensor y = at::scaled_dot_product_attention(
      split(query), split(key), split(value), mask.defined() ? std::optional(mask) : std::nullopt, dropout, causal);
  return y.transpose(1, 2).reshape(query.sizes());
}

namespace {

void check_range(const TokenLimits& limits, const at::Tensor& ids, int64_t end, const char* what) {
  if (!ids.defined() || !ids.is_cpu() || ids.numel() == 0 || is_exporting()) return;
  const auto [low, high] = at::aminmax(ids);
  const int64_t first = low.item<int64_t>(), last = high.item<int64_t>();
  TORCH_CHECK_VALUE(first >= 0 && last < end, limits.model, ": expected ", what, " from 0 to ", end - 1, ", got ",
                    first < 0 ? first : last, ".");
}

void check_like_ids(const TokenLimits& limits, const at::Tensor& ids, const at::Tensor& other, const char* what) {
  if (!other.defined()) return;
  TORCH_CHECK_VALUE(other.sizes() == ids.sizes() && other.device() == ids.device() && !other.is_floating_point(),
                    limits.model, ": expected ", what, " of the same shape and device as the token ids, ", ids.sizes(),
                    ", got ", other.scalar_type(), " ", other.sizes(), ".");
}

}  // namespace

std::string output_name(TextHead head) {
  switch (head) {
    case TextHead::hidden_states:
    case TextHead::masked_lm_hidden:
      return "last_hidden_state";
    case TextHead::pooled:
      return "pooler_output";
    case TextHead::classifier:
    case TextHead::masked_lm:
      return "logits";
  }
  return "output";
}

at::Tensor attention_mask(const at::Tensor& ids, const at::Tensor& mask, std::optional<int64_t> pad_token) {
  const at::Tensor kept = mask.defined() ? mask.ne(0) : pad_token ? ids.ne(*pad_token) : at::Tensor();
  // Without a mask, attention uses its fastest kernels. On other devices, the check would cost a synchronization.
  const bool full = !kept.defined() || (kept.is_cpu() && !is_exporting() && kept.all().item<bool>());
  return full ? at::Tensor() : kept.unsqueeze(1).unsqueeze(1);
}

Tokens read_tokens(const at::Tensor& ids, const at::Tensor& mask, const at::Tensor& types, const TokenLimits& limits) {
  TORCH_CHECK_VALUE(ids.defined() && ids.scalar_type() == at::kLong && ids.dim() == 2, limits.model,
                    ": expected token ids, int64 [N, T], got ",
                    ids.defined() ? c10::str(ids.scalar_type(), " ", ids.sizes()) : "nothing", ".");
  const int64_t length = ids.size(1);
  TORCH_CHECK_VALUE(length >= 1 && length <= limits.max_length, limits.model, ": expected 1 to ", limits.max_length,
                    " tokens per sample, the number of positions of the model, got ", length,
                    ". Truncate or split the text.");
  check_like_ids(limits, ids, mask, "an attention mask");
  check_like_ids(limits, ids, types, "token types");
  check_range(limits, ids, limits.vocab_size, "token ids");
  check_range(limits, types, limits.types, "token types");
  return {ids, attention_mask(ids, mask, limits.pad_token), types.defined() ? types.to(at::kLong) : types};
}

void init_normal(torch::nn::Module& module, double std) {
  const torch::NoGradGuard no_grad;
  for (const auto& part : module.modules(/*include_self=*/false)) {
    if (auto* linear = part->as<torch::nn::LinearImpl>()) {
      linear->weight.normal_(0, std);
      if (linear->bias.defined()) linear->bias.zero_();
    } else if (auto* embedding = part->as<torch::nn::EmbeddingImpl>()) {
      embedding->weight.normal_(0, std);
      if (const auto padding = embedding->options.padding_idx()) embedding->weight[*padding].zero_();
    }
  }
}

void check_sizes(const std::string& model, const std::vector<NamedSize>& sizes, int64_t width, int64_t heads) {
  for (const auto& [name, value, most] : sizes) {
    TORCH_CHECK_VALUE(value >= 1 && value <= most, model, ": expected ", name, " from 1 to ", most, ", got ", value,
                      ".");
  }
  TORCH_CHECK_VALUE(heads >= 1 && width % heads == 0, model, ": expected attention heads that divide the width of ",
                    width, ", got ", heads, ".");
}

void check_dropout(const std::string& model, std::initializer_list<double> rates) {
  for (const double rate : rates) {
    TORCH_CHECK_VALUE(rate >= 0 && rate < 1, model, ": expected dropout in [0, 1), got ", rate, ".");
  }
}

void check_numbers(const std::string& model, double deviation, double epsilon) {
  TORCH_CHECK_VALUE(std::isfinite(deviation) && deviation >= 0, model,
                    ": expected initializer_range, a standard deviation, of at least 0, got ", deviation, ".");
  TORCH_CHECK_VALUE(std::isfinite(epsilon) && epsilon > 0, model, ": expected a layer norm's epsilon above 0, got ",
                    epsilon, ".");
}

void check_pad_token(const std::string& model, int64_t pad_token, int64_t vocab_size) {
  TORCH_CHECK_VALUE(pad_token >= 0 && pad_token < vocab_size, model, ": expected a pad_token_id from 0 to ",
                    vocab_size - 1, ", got ", pad_token, ".");
}

}  // namespace layers

}  // namespace bellows::models
