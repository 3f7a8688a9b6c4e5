#include "bench/ddp/side.h"

#include <fstream>
#include <memory>
#include <optional>

#include "bellows/comm/collectives.h"
#include "bellows/comm/world.h"
#include "bellows/compile/compile.h"
#include "bellows/optim/optimizers.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "bellows/parallel/zero/zero_optimizer.h"
#include "bellows/tap/allocator.h"
#include "bench/ddp/tasks.h"
#include "bench/ddp/trainer_loop.h"
#include "bench/support/ranks.h"

namespace bellows::bench {

namespace {

/// zero1, zero2, zero3, zero3_keep, which keeps parameters between forward and backward, zero3_bf16, which computes in
/// bf16, or zero3_files, which keeps all shards and the optimizer state in files in $TMPDIR. Blocks of a model are units.
std::optional<parallel::ShardOptions> shard_options(const std::string& strategy, const std::string& model) {
  if (!strategy.starts_with("zero")) return std::nullopt;
  parallel::ShardOptions options{.stage = strategy[4] - '0', .reshard_after_forward = strategy != "zero3_keep"};
  if (strategy == "zero3_bf16") {
    options.parameter_dtype = at::kBFloat16;
    options.reduce_dtype = at::kFloat;
  }
  if (strategy == "zero3_files") options.offload_parameters = options.offload_state = parallel::Offload::file;
  if (options.stage == 3 && model == "bert") options.units = {"bert.encoder.layer.*"};
  if (options.stage == 3 && model == "resnet18") options.units = {"layer?"};
  return options;
}

/// Parts per rank of a strategy that runs in the trainer; -1: it does not.
int64_t trainer_parts(const std::string& strategy) {
  if (strategy == "trainer") return 0;
  if (strategy == "reproducible") return 1;
  return strategy == "reproducible_2" ? 2 : -1;
}

/// MODEL.STRATEGY: ddp, a strategy of shard_options(), or alone, the rank's part of the batch with gradients of its own.
/// trainer is DDP in the trainer, and reproducible is the same with the key reproducible_ranks, with one part per rank.
/// reproducible_2 has two parts per rank.
/// With the ending _compiled, the complete step is compiled. With the ending _accumulate, a step has two batches.
class Run {
 public:
  Run(const std::string& name, const World& world, double learning_rate)
      : task_(make_task(name.substr(0, name.find('.')), world.rank(), world.size())) {
    std::string strategy = name.substr(name.find('.') + 1);
    if (const int64_t parts = trainer_parts(strategy); parts >= 0) {
      loop_ = make_trainer_loop(name.substr(0, name.find('.')), world, learning_rate, parts * world.size());
      return;
    }
    const size_t ending = strategy.find("_compiled");
    if (ending != strategy.npos) compiled_.emplace([this] { return eager_step(); }, CompileOptions{});
    strategy = strategy.substr(0, ending);
    if (const size_t twice = strategy.find("_accumulate"); twice != strategy.npos) {
      batches_ = 2;
      strategy = strategy.substr(0, twice);
    }
    keeps_gradients_ = strategy == "alone";  // as DDP does, where they are views of buckets
    const auto sharding = shard_options(strategy, name.substr(0, name.find('.')));
    if (strategy == "ddp" || strategy == "zero1") ddp_.emplace(task_.model, world);
    optimizer_ = std::make_shared<optim::AdamW>(task_.model.parameters(), optim::AdamWOptions{.lr = learning_rate});
    if (sharding) optimizer_ = parallel::zero_optimizer(optimizer_, task_.model, world, *sharding);
  }

  at::Tensor step() {
    if (loop_) {
      loop_->run_steps(1);
      loop_->take_losses();
      return loop_->last_loss();
    }
    return compiled_ ? (*compiled_)() : eager_step();
  }

 private:
  at::Tensor eager_step() {
    optimizer_->zero_grad(!keeps_gradients_);
    at::Tensor loss;
    for (int batch = 0; batch < batches_; ++batch) {
      loss = task_.loss(ddp_ ? ddp_->forward(task_.x) : task_.model.forward(task_.x), task_.y);
      loss.backward();
    }
    optimizer_->step();
    return loss;
  }

  Task task_;
  std::unique_ptr<train::TrainLoop> loop_;
  std::optional<parallel::DistributedDataParallel> ddp_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<Compiled<std::function<at::Tensor()>>> compiled_;
  int batches_ = 1;
  bool keeps_gradients_ = false;
};

/// Runs a step and returns the mean of the ranks' losses.
double mean_loss(Run& run, const World& world) {
  return comm::all_reduce(run.step().detach().to(at::kDouble), world, comm::Reduce::mean).item<double>();
}

/// The most bytes that this rank held at once in a step, model and optimizer included.
std::string peak(const std::string& name, const World& world, double learning_rate) {
  tap::install_cpu_allocator();
  const int64_t before = tap::cpu_allocation_counters().current_bytes;
  Run run(name, world, learning_rate);
  for (int i = 0; i < 3; ++i) run.step();  // DDP makes its buckets anew behind the first
  tap::reset_cpu_allocation_peak();
  run.step();
  return std::to_string(tap::cpu_allocation_counters().peak_bytes - before);
}

/// A number in /proc/self/status, in bytes.
int64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

/// How much memory of the process model, optimizer and steps need at most, as the system counts it.
std::string resident_peak(const std::string& name, const World& world, double learning_rate) {
  const int64_t before = status_bytes("VmRSS");
  Run run(name, world, learning_rate);
  for (int i = 0; i < 2; ++i) run.step();
  std::ofstream("/proc/self/clear_refs") << "5";  // resets VmHWM
  for (int i = 0; i < 2; ++i) run.step();
  return std::to_string(status_bytes("VmHWM") - before);
}

}  // namespace

int serve_rank(double learning_rate) {
  start_other_ranks("bench_ddp");
  const World world = init();
  std::unique_ptr<Run> run;
  const auto drop_run_and_read = [&run](std::istream& words) {
    std::string name;
    words >> name;
    run.reset();
    return name;
  };
  const RankCommands commands = {
      {"losses", losses_command(
                     run, [&](const std::string& name) { return std::make_unique<Run>(name, world, learning_rate); },
                     [&](Run& one) { return mean_loss(one, world); })},
      {"peak", [&](std::istream& words) { return peak(drop_run_and_read(words), world, learning_rate); }},
      {"resident", [&](std::istream& words) { return resident_peak(drop_run_and_read(words), world, learning_rate); }},
  };
  return serve_commands(
      world, [&] { run->step(); }, commands);
}

}  // namespace bellows::bench
