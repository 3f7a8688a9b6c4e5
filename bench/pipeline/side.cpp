#include "bench/pipeline/side.h"

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "bellows/models/formula_weights.h"
#include "bellows/optim/optimizers.h"
#include "bellows/parallel/pipeline/pipeline.h"
#include "bellows/parallel/pipeline/stages.h"
#include "bench/support/ranks.h"

namespace bellows::bench {

namespace {

struct ResidualBlock final : torch::nn::Module {
  explicit ResidualBlock(int64_t width) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", torch::nn::Linear(width, 4 * width));
    down = register_module("down", torch::nn::Linear(4 * width, width));
  }
  at::Tensor forward(const at::Tensor& x) { return x + down->forward(at::gelu(up->forward(norm->forward(x)))); }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
};

class PipelineRun {
 public:
  PipelineRun(const std::string& schedule, const World& world, const PipelineSizes& sizes)
      : stages_(make(schedule, world, sizes)),
        optimizer_(stages_.parameters(), optim::SGDOptions{.lr = sizes.learning_rate}),
        x_(models::formula_uniform("x", {sizes.tokens, sizes.width}).to(at::kFloat)),
        y_(models::formula_uniform("y", {sizes.tokens, sizes.width}).to(at::kFloat)) {}

  double step() {
    optimizer_.zero_grad();
    const double loss = stages_.step({x_}, {y_}, [](const at::Tensor& output, const std::vector<at::Tensor>& targets) {
      return at::mse_loss(output, targets[0]);
    });
    optimizer_.step();
    return loss;
  }

 private:
  static parallel::Pipeline make(const std::string& schedule, const World& world, const PipelineSizes& sizes) {
    std::vector<Model> blocks;
    for (int64_t i = 0; i < sizes.blocks; ++i)
      blocks.push_back(Model::of(std::make_shared<ResidualBlock>(sizes.width)));
    const ModelParts parts = parallel::parts_of(blocks);
    models::set_formula_weights(parts.model);
    return parallel::pipeline(parts, world,
                              {.schedule = parallel::named_schedule(schedule, world.size(), sizes.micro_batches, 2)});
  }

  parallel::Pipeline stages_;
  optim::SGD optimizer_;
  at::Tensor x_, y_;
};

}  // namespace

int serve_pipeline_rank(const PipelineSizes& sizes) {
  start_other_ranks("bench_pipeline");
  const World world = init();
  std::unique_ptr<PipelineRun> run;
  const auto make = [&](const std::string& schedule) { return std::make_unique<PipelineRun>(schedule, world, sizes); };
  const auto losses = losses_command(run, make, [](PipelineRun& one) { return one.step(); });
  return serve_commands(world, [&] { run->step(); }, {{"losses", losses}});
}

}  // namespace bellows::bench
