#include "bench/tensor/language_model.h"

#include <torch/torch.h>

#include <memory>

#include "bellows/models/formula_weights.h"

namespace bellows::bench {

namespace {

using torch::nn::LayerNorm;
using torch::nn::LayerNormOptions;
using torch::nn::Linear;

struct LmBlock : torch::nn::Module {
  LmBlock()
      : norm1(register_module("norm1", LayerNorm(LayerNormOptions({lm_width})))),
        norm2(register_module("norm2", LayerNorm(LayerNormOptions({lm_width})))),
        query(register_module("query", Linear(lm_width, lm_width))),
        key(register_module("key", Linear(lm_width, lm_width))),
        value(register_module("value", Linear(lm_width, lm_width))),
        output(register_module("output", Linear(lm_width, lm_width))),
        up(register_module("up", Linear(lm_width, lm_inner))),
        down(register_module("down", Linear(lm_inner, lm_width))) {}

  static at::Tensor by_heads(const at::Tensor& x) { return x.unflatten(-1, {-1, lm_width / lm_heads}).transpose(1, 2); }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = norm1(x);
    const at::Tensor mixed = at::scaled_dot_product_attention(by_heads(query(y)), by_heads(key(y)), by_heads(value(y)),
                                                              {}, 0.0, /*is_causal=*/true);
    const at::Tensor z = x + output(mixed.transpose(1, 2).flatten(2));
    return z + down(torch::gelu(up(norm2(z))));
  }

  LayerNorm norm1, norm2;
  Linear query, key, value, output, up, down;
};

struct LmModule : torch::nn::Module {
  LmModule()
      : embed(register_module("embed", torch::nn::Embedding(lm_vocabulary, lm_width))),
        place(register_module("place", torch::nn::Embedding(lm_length, lm_width))),
        norm(register_module("norm", LayerNorm(LayerNormOptions({lm_width})))),
        head(register_module("head", Linear(torch::nn::LinearOptions(lm_width, lm_vocabulary).bias(false)))) {
    for (int64_t i = 0; i < lm_layers; ++i) blocks->push_back(std::make_shared<LmBlock>());
    register_module("blocks", blocks);
  }

  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = embed(ids) + place(torch::arange(ids.size(1)));
    for (const auto& module : *blocks) {
      const BlockCall call = [block = module->as<LmBlock>()](const at::Tensor& input) { return block->forward(input); };
      x = run ? run(call, x) : call(x);
    }
    return head(norm(x));
  }

  torch::nn::Embedding embed, place;
  torch::nn::ModuleList blocks;
  LayerNorm norm;
  Linear head;
  RunLmBlock run;
};

}  // namespace

LanguageModel make_language_model() {
  const auto module = std::make_shared<LmModule>();
  const Model model = Model::of(module, "language_model");
  models::set_formula_weights(model);
  model.train();
  return {model, [module](RunLmBlock run) { module->run = std::move(run); }};
}

LmBatch make_lm_batch() {
  const int64_t count = lm_sequences * lm_length;
  return {models::formula_labels("ids", count, lm_vocabulary).view({lm_sequences, lm_length}),
          models::formula_labels("labels", count, lm_vocabulary)};
}

}  // namespace bellows::bench
