#include "bench/tensor/side.h"

#include <torch/torch.h>

#include <memory>
#include <optional>

#include "bellows/optim/optimizers.h"
#include "bellows/parallel/tensor/tensor_parallel.h"
#include "bench/support/ranks.h"
#include "bench/tensor/language_model.h"

namespace bellows::bench {

namespace {

/// A variant: `layers` divides attention and linear layers. `vocabulary` also divides the embedding and the output layer,
/// and computes the loss of divided logits. `sequence` also divides norms and residuals along the sequence.
class TensorRun {
 public:
  TensorRun(const std::string& variant, const World& world, double learning_rate)
      : language_(make_language_model()), batch_(make_lm_batch()), tensor_(divided(language_.model, variant, world)) {
    if (variant == "sequence") language_.run_blocks_by(tensor_.sequence_blocks(lm_layers));
    optimizer_.emplace(tensor_.model().parameters(), optim::AdamWOptions{.lr = learning_rate});
  }

  at::Tensor step() {
    optimizer_->zero_grad();
    const auto scope = tensor_.scope();
    const at::Tensor loss = at::cross_entropy_loss(tensor_.forward(batch_.x).flatten(0, 1), batch_.y);
    loss.backward();
    optimizer_->step();
    return loss;
  }

 private:
  static parallel::TensorParallel divided(const Model& model, const std::string& variant, const World& world) {
    parallel::TensorPlan plan = {{"*.query", parallel::column}, {"*.key", parallel::column},
                                 {"*.value", parallel::column}, {"*.output", parallel::row},
                                 {"*.up", parallel::column},    {"*.down", parallel::row}};
    if (variant != "layers") {
      plan.emplace_back("embed", parallel::vocabulary);
      plan.emplace_back("head", parallel::vocabulary);
    }
    return parallel::parallelize(model, world, plan);
  }

  LanguageModel language_;
  LmBatch batch_;
  parallel::TensorParallel tensor_;
  std::optional<optim::AdamW> optimizer_;
};

}  // namespace

int serve_tensor_rank(double learning_rate) {
  start_other_ranks("bench_tensor");
  const World world = init();
  std::unique_ptr<TensorRun> run;
  const auto make = [&](const std::string& variant) {
    return std::make_unique<TensorRun>(variant, world, learning_rate);
  };
  const auto losses = losses_command(run, make, [](TensorRun& one) { return one.step().item<double>(); });
  return serve_commands(world, [&] { run->step(); }, {{"losses", losses}});
}

}  // namespace bellows::bench
