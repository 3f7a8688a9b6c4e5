#include "bench/simulator/side.h"

#include <torch/torch.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/models/blocks.h"
#include "bellows/models/formula_weights.h"
#include "bellows/optim/optimizers.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "bellows/parallel/pipeline/pipeline.h"
#include "bellows/parallel/tensor/tensor_parallel.h"
#include "bellows/parallel/zero/zero_optimizer.h"
#include "bench/support/ranks.h"

namespace bellows::bench {

namespace {

at::Tensor next_token_loss(const at::Tensor& logits, const std::vector<at::Tensor>& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1), targets[0].flatten());
}

/// The first part of each stage. All stages have the same number of layers; the embedding is part 0.
std::vector<int> first_parts_of(int ranks) {
  std::vector<int> parts = {0};
  for (int stage = 1; stage < ranks; ++stage) parts.push_back(1 + stage * static_cast<int>(gpt_layers) / ranks);
  return parts;
}

class StrategyRun {
 public:
  StrategyRun(const std::string& strategy, const World& world) : model_(models::gpt(gpt_sizes())) {
    models::set_formula_weights(model_);
    model_.train();
    const bool divides_model = strategy == "tensor" || strategy == "pipeline";
    make_batch(divides_model ? 0 : world.rank(), divides_model ? 1 : world.size());
    if (strategy == "tensor") tensor_.emplace(parallel::parallelize(model_, world, parallel::tensor_plan(model_)));
    if (strategy == "pipeline") make_pipeline(world);
    if (strategy == "ddp" || strategy == "zero1") ddp_.emplace(model_, world);
    const auto parameters = stages_ ? stages_->parameters() : model_.parameters();
    optimizer_ = std::make_shared<optim::AdamW>(parameters, optim::AdamWOptions{.lr = 1e-3});
    if (strategy.starts_with("zero"))
      optimizer_ = parallel::zero_optimizer(optimizer_, model_, world, {.stage = strategy[4] - '0'});
  }

  double step() {
    optimizer_->zero_grad();
    const double loss = stages_ ? stages_->step({ids_}, {labels_}, next_token_loss) : backward();
    optimizer_->step();
    return loss;
  }

 private:
  void make_batch(int part, int parts) {
    const int64_t count = gpt_sequences / parts;
    const auto tokens = [&](const char* name) {
      return models::formula_labels(name, gpt_sequences * gpt_length, gpt_vocabulary)
          .view({gpt_sequences, gpt_length})
          .narrow(0, part * count, count)
          .contiguous();
    };
    ids_ = tokens("ids");
    labels_ = tokens("labels");
  }

  void make_pipeline(const World& world) {
    const int ranks = world.size();
    parallel::PipelineOptions options{
        .schedule = parallel::one_forward_one_backward(ranks, static_cast<int>(pipeline_micro_batches(ranks)))};
    options.first_parts = first_parts_of(ranks);
    stages_.emplace(parallel::pipeline(models::model_parts(model_), world, options));
  }

  double backward() {
    if (!tensor_) return backward_from(ddp_ ? ddp_->forward(ids_) : model_.forward(ids_));
    const auto scope = tensor_->scope();
    return backward_from(tensor_->forward(ids_));
  }

  double backward_from(const at::Tensor& logits) const {
    const at::Tensor loss = next_token_loss(logits, {labels_});
    loss.backward();
    return loss.item<double>();
  }

  Model model_;
  at::Tensor ids_, labels_;
  std::optional<parallel::TensorParallel> tensor_;
  std::optional<parallel::Pipeline> stages_;
  std::optional<parallel::DistributedDataParallel> ddp_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace

models::GptOptions gpt_sizes() {
  models::GptOptions options;
  options.vocab_size = gpt_vocabulary;
  options.n_positions = gpt_length;
  options.n_embd = gpt_width;
  options.n_layer = gpt_layers;
  options.n_head = gpt_heads;
  options.resid_pdrop = options.embd_pdrop = options.attn_pdrop = 0;
  return options;
}

int serve_simulated_rank() {
  start_other_ranks("bench_simulator");
  const World world = init();
  std::unique_ptr<StrategyRun> run;
  const auto make = [&](const std::string& strategy) { return std::make_unique<StrategyRun>(strategy, world); };
  const auto losses = losses_command(run, make, [](StrategyRun& one) { return one.step(); });
  return serve_commands(world, [&] { run->step(); }, {{"losses", losses}});
}

}  // namespace bellows::bench
