#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>

#include "bellows/models/bert.h"
#include "bellows/models/formula_weights.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "bellows/parallel/zero/zero_optimizer.h"
#include "tests/parallel/ddp_models.h"
#include "tests/parallel/ranks.h"

// A BERT whose decoder is tied to its embedding, of sizes that no world divides.
namespace bellows::parallel::testing {
namespace {

constexpr int64_t bert_words = 37, bert_batch = 12, bert_length = 5;

Model tiny_bert() {
  Model model = models::bert({.head = models::TextHead::masked_lm,
                              .vocab_size = bert_words,
                              .hidden_size = 14,
                              .num_hidden_layers = 2,
                              .num_attention_heads = 2,
                              .intermediate_size = 23,
                              .hidden_dropout_prob = 0,
                              .attention_probs_dropout_prob = 0,
                              .max_position_embeddings = 7});
  model.module()->to(at::kDouble);
  models::set_formula_weights(model);
  return model;
}

/// Of the samples of one rank; the mean over equal parts is the mean over the batch.
at::Tensor masked_lm_loss(const std::function<at::Tensor(const at::Tensor&)>& forward, int step, int rank, int ranks,
                          int64_t batch) {
  const at::Tensor words = models::formula_labels("words" + std::to_string(step), batch * bert_length, bert_words)
                               .view({batch, bert_length});
  const at::Tensor own = part(words, rank, ranks);
  return torch::nn::functional::cross_entropy(forward(own).flatten(0, 1), own.roll(1, 1).flatten());
}

std::vector<at::Tensor> bert_alone(int steps, int64_t batch = bert_batch) {
  const Model model = tiny_bert();
  auto optimizer = sgd(model);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    masked_lm_loss([&](const at::Tensor& x) { return model.forward(x); }, step, 0, 1, batch).backward();
    optimizer.step();
  }
  return copies(model.parameters());
}

std::vector<at::Tensor> bert_on_ranks(int stage, int steps, const comm::Group& group, int64_t batch = bert_batch) {
  const Model model = tiny_bert();
  std::shared_ptr<torch::optim::Optimizer> optimizer = std::make_shared<torch::optim::SGD>(sgd(model));
  std::optional<DistributedDataParallel> ddp;
  if (stage < 2) ddp.emplace(model, group, DistributedOptions{.bucket_bytes = 3000});
  if (stage > 0) optimizer = zero_optimizer(optimizer, model, group, {.stage = stage, .bucket_bytes = 3000});
  const auto forward = [&](const at::Tensor& x) { return ddp ? ddp->forward(x) : model.forward(x); };
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    masked_lm_loss(forward, step, group.rank(), group.size(), batch).backward();
    optimizer->step();
  }
  return copies(model.parameters());
}

TEST(BertOnRanks, TwentyStepsAreThoseOfOneProcess) {
  const std::vector<at::Tensor> expected = bert_alone(20);
  ASSERT_FALSE(at::allclose(expected[0], tiny_bert().parameters()[0].detach(), 1e-3)) << "nothing was trained";
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(c10::str("stage ", stage, " on ", ranks));
      run_ranks(ranks,
                [&](const comm::Group& group) { expect_close(bert_on_ranks(stage, 20, group), expected, 1e-9); });
    }
  }
}

// Some ranks hold no element of the small parameters.
TEST(BertOnRanks, TwentyStepsOnEightRanksAreThoseOfOneProcess) {
  const std::vector<at::Tensor> expected = bert_alone(20, 8);
  run_ranks(8, [&](const comm::Group& group) { expect_close(bert_on_ranks(3, 20, group, 8), expected, 1e-9); });
}

}  // namespace
}  // namespace bellows::parallel::testing
