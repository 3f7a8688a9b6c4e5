#include "bellows/recompute/activation_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/amp/autocast.h"
#include "bellows/models/bert.h"
#include "bellows/models/blocks.h"
#include "bellows/models/distilbert.h"
#include "bellows/models/encoder_decoder.h"
#include "bellows/models/formula_weights.h"
#include "bellows/models/gpt.h"
#include "bellows/models/resnet.h"
#include "bellows/models/unet.h"

namespace bellows::models {

namespace {

struct RecomputeCase {
  Model model;
  at::Tensor input;
  bool autocast = true;  ///< convolutions in bf16 take seconds on processors without it
};

std::vector<RecomputeCase> recompute_cases(bool fused) {
  const auto image = [](int64_t channels, int64_t size) {
    return formula_uniform("image", {4, channels, size, size}).to(at::kFloat);
  };
  const at::Tensor ids = formula_labels("ids", 24, 40).view({3, 8});  // zeros are padding
  const BertOptions bert_options{.vocab_size = 40,
                                 .hidden_size = 16,
                                 .num_hidden_layers = 2,
                                 .num_attention_heads = 2,
                                 .intermediate_size = 32,
                                 .fused = fused};
  std::vector<RecomputeCase> cases = {
      {bert(bert_options), ids},
      {distilbert({.vocab_size = 40, .dim = 16, .n_layers = 2, .n_heads = 2, .hidden_dim = 32, .fused = fused}), ids},
      {gpt({.vocab_size = 40, .n_embd = 16, .n_layer = 2, .n_head = 2, .fused = fused}), ids},
      {encoder_decoder({.in_features = 2, .horizon = 2, .d_model = 16, .nhead = 2, .fused = fused}),
       formula_uniform("series", {3, 6, 2}).to(at::kFloat)}};
  if (fused) return cases;
  cases.push_back({resnet18({.num_classes = 10}), image(3, 32), false});
  cases.push_back({unet({.channels = 4, .depth = 2}), image(3, 9), false});
  return cases;
}

/// Output, gradients, buffers and the next random numbers of one step in training, from the same start.
std::vector<at::Tensor> results_of_step(const RecomputeCase& one, bool low) {
  std::vector<at::Tensor> buffers;
  const NamedTensors own = one.model.named_buffers();
  buffers.reserve(own.size());
  for (const auto& [name, buffer] : own) buffers.push_back(buffer.clone());
  at::manual_seed(3);
  at::Tensor y;
  {
    const amp::AutocastGuard guard(at::kCPU, at::kBFloat16, low);
    y = one.model.forward(one.input);
  }
  y.to(at::kFloat).square().sum().backward();
  std::vector<at::Tensor> result = {y.detach(), at::rand({4})};
  const std::vector<at::Tensor> parameters = one.model.parameters();
  result.reserve(result.size() + parameters.size() + own.size());
  for (const at::Tensor& parameter : parameters) {
    result.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::zeros({1}));
    parameter.mutable_grad().reset();
  }
  for (size_t i = 0; i < own.size(); ++i) {
    result.push_back(own[i].second.clone());
    own[i].second.copy_(buffers[i]);
  }
  return result;
}

}  // namespace

TEST(Recompute, OfEveryBlockChangesNoBit) {
  for (const bool fused : {false, true}) {
    for (const RecomputeCase& one : recompute_cases(fused)) {
      for (const bool low : {false, true}) {
        if (low && !one.autocast) continue;
        SCOPED_TRACE(c10::str(one.model.name(), fused ? ", fused" : "", low ? ", bf16" : ""));
        one.model.train();
        run_blocks_by(one.model, {});
        const auto plain = results_of_step(one, low);
        ASSERT_GT(run_blocks_by(one.model, [](const Block& block,
                                              const at::Tensor& x) { return recompute::checkpoint(block, x); }),
                  0);
        const auto recomputed = results_of_step(one, low);
        ASSERT_EQ(plain.size(), recomputed.size());
        for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(torch::equal(plain[i], recomputed[i])) << i;
      }
    }
  }
}

}  // namespace bellows::models
