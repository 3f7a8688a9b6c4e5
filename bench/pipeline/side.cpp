#include "bench/pipeline/side.h"

#include <sys/prctl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <vector>

#include "bellows/comm/collectives.h"
#include "bellows/comm/world.h"
#include "bellows/models/formula_weights.h"
#include "bellows/optim/optimizers.h"
#include "bellows/parallel/pipeline/pipeline.h"
#include "bellows/parallel/pipeline/stages.h"

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

parallel::PipelineSchedule schedule_named(const std::string& name, int ranks, int micro_batches) {
  if (name == "gpipe") return parallel::gpipe(ranks, micro_batches);
  if (name == "1f1b") return parallel::one_forward_one_backward(ranks, micro_batches);
  if (name == "interleaved") return parallel::interleaved(ranks, micro_batches, 2);
  return parallel::zero_bubble_h1(ranks, micro_batches);
}

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

  std::string losses(int64_t count) {
    std::ostringstream text;
    for (int64_t i = 0; i < count; ++i) text << (i > 0 ? " " : "") << std::setprecision(10) << step();
    return text.str();
  }

 private:
  static parallel::Pipeline make(const std::string& schedule, const World& world, const PipelineSizes& sizes) {
    std::vector<Model> blocks;
    for (int64_t i = 0; i < sizes.blocks; ++i)
      blocks.push_back(Model::of(std::make_shared<ResidualBlock>(sizes.width)));
    const ModelParts parts = parallel::parts_of(blocks);
    models::set_formula_weights(parts.model);
    return parallel::pipeline(parts, world, {.schedule = schedule_named(schedule, world.size(), sizes.micro_batches)});
  }

  parallel::Pipeline stages_;
  optim::SGD optimizer_;
  at::Tensor x_, y_;
};

double seconds_of_steps(PipelineRun& run, int64_t count, const World& world) {
  comm::barrier(world);
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < count; ++i) run.step();
  comm::barrier(world);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::string obey_pipeline(const std::string& line, std::unique_ptr<PipelineRun>& run, const World& world,
                          const PipelineSizes& sizes) {
  std::istringstream words(line);
  std::string command, name;
  int64_t count = 0;
  words >> command;
  if (command == "losses") {
    words >> name >> count;
    run.reset();
    run = std::make_unique<PipelineRun>(name, world, sizes);
    return run->losses(count);
  }
  words >> count;
  return std::to_string(seconds_of_steps(*run, count, world));
}

void start_other_ranks() {
  if (std::getenv("RANK")[0] != '0') return;
  for (int rank = 1; rank < std::atoi(std::getenv("WORLD_SIZE")); ++rank) {
    if (fork() != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("RANK", std::to_string(rank).c_str(), 1);
    setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
    execl("/proc/self/exe", "bench_pipeline", "--serve", nullptr);
    _exit(127);
  }
}

}  // namespace

int serve_pipeline_rank(const PipelineSizes& sizes) {
  start_other_ranks();
  const World world = init();
  std::unique_ptr<PipelineRun> run;
  const bool first = world.rank() == 0;
  if (first) std::cout << "ready" << std::endl;
  for (std::string line; !first || std::getline(std::cin, line);) {
    line = comm::broadcast_string(line, 0, world);
    if (line.empty()) break;
    const std::string answer = obey_pipeline(line, run, world, sizes);
    if (first) std::cout << answer << std::endl;
  }
  if (first) comm::broadcast_string("", 0, world);
  return 0;
}

}  // namespace bellows::bench
