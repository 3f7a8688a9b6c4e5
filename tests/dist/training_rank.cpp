// One rank of a job that trains with DistributedDataParallel and saves every other step, and may come to grief:
// `training_rank FOLDER [NAME=VALUE]…`
//   steps=12             in all; after an even number of them a checkpoint
//   pause_ms=0           after each
//   timeout_s=60         of a collective; a third of it until the watchdog warns
//   fault=WHERE          forward, backward, all_reduce or save: there the victim sends itself the signal, in the first round
//   fault_step=6  victim=1  signal=9
// Says "pid P", "goes on from step S", "step N" for each, "trained in T s". Ends with 1 and the error on standard error.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <map>
#include <thread>

#include "bellows/checkpoint/sharded_folder.h"
#include "bellows/comm/collectives.h"
#include "bellows/comm/world.h"
#include "bellows/core/error.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "system_calls.h"

namespace bellows::testing {

namespace {

using namespace std::chrono_literals;
using Settings = std::map<std::string, std::string>;

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

/// Where the victim's signal comes, in the step that is meant.
struct Fault {
  Fault(const Settings& settings, const World& world)
      : where(settings.at("fault")),
        step(std::stoll(settings.at("fault_step"))),
        signal(std::stoi(settings.at("signal"))),
        victim(std::stoi(settings.at("victim"))),
        rank(world.rank()),
        first_round(world.restart_count() == 0) {}

  bool is_due(const char* place) const { return first_round && now == step && where == place; }
  void strike(const char* place) const {
    if (is_due(place) && rank == victim) raise(signal);
  }

  const std::string where;
  const int64_t step;
  const int signal, victim, rank;
  const bool first_round;
  int64_t now = 0;  ///< the step that is being made
};

at::Tensor numbers(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kFloat);
}

/// x [N, 32] → y [N, 8] through three layers.
class Layers final : public Model::Impl {
 public:
  explicit Layers(const Fault& fault) : fault_(fault) {
    for (const auto& [name, rows, columns] : {std::tuple{"first", 64, 32}, {"middle", 64, 64}, {"last", 8, 64}}) {
      parameters_.emplace_back(c10::str(name, ".weight"), numbers({rows, columns}, parameters_.size()) * 0.1);
      parameters_.emplace_back(c10::str(name, ".bias"), at::zeros({rows}));
    }
    for (auto& [name, parameter] : parameters_) parameter.requires_grad_(true);
  }

  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor first = layer(0, x).tanh();
    fault_.strike("forward");
    const at::Tensor middle = layer(1, first).tanh();
    // Behind the last layer's gradients, before the others.
    if (middle.requires_grad()) middle.register_hook([this](const at::Tensor&) { fault_.strike("backward"); });
    return layer(2, middle);
  }
  NamedTensors named_parameters() const override { return parameters_; }
  NamedTensors named_buffers() const override { return {}; }
  void set_training(bool) override {}
  bool training() const override { return true; }
  void to(c10::Device) override {}

 private:
  at::Tensor layer(size_t i, const at::Tensor& x) const {
    return at::linear(x, parameters_[2 * i].second, parameters_[2 * i + 1].second);
  }

  const Fault& fault_;
  NamedTensors parameters_;
};

/// The mean itself. The victim goes while a bucket's all_reduce is on its way: another rank is late for it, so that it
/// cannot be over.
class MeanAndFault final : public parallel::GradientHook {
 public:
  explicit MeanAndFault(const Fault& fault) : fault_(fault) {}

  at::Tensor mean(const parallel::GradientBucket& bucket, const comm::Group& group) override {
    at::Tensor flat = bucket.flat.mul_(1.0 / group.size());  // as c10d does without a hook
    const bool due = bucket.index == 1 && fault_.is_due("all_reduce");
    if (due && fault_.rank == (fault_.victim + 1) % group.size()) std::this_thread::sleep_for(600ms);
    comm::Pending pending = comm::all_reduce_async(flat, group);
    if (due && fault_.rank == fault_.victim) {
      std::this_thread::sleep_for(300ms);
      fault_.strike("all_reduce");
    }
    return pending.wait();
  }
  std::string describe() const override { return "the mean itself"; }

 private:
  const Fault& fault_;
};

checkpoint::ShardedState state_of(const parallel::DistributedDataParallel& ddp, const NamedTensors& velocities,
                                  int64_t step) {
  NamedTensors weights;
  for (const auto& [name, parameter] : ddp.model().named_parameters()) weights.emplace_back(name, parameter.detach());
  return {.model = checkpoint::whole_parts(weights),
          .optimizer = checkpoint::whole_parts(velocities),
          .extra = checkpoint::whole_parts(ddp.state()),
          .step = step,
          .consumed = step};
}

void update(const Model& model, const NamedTensors& velocities) {
  const at::NoGradGuard no_grad;
  size_t i = 0;
  for (auto& [name, parameter] : model.named_parameters()) {
    at::Tensor velocity = velocities[i++].second;
    velocity.mul_(0.9).add_(parameter.grad());
    parameter.add_(velocity, -0.1);
    parameter.mutable_grad() = at::Tensor();
  }
}

void train(const std::string& path, const Settings& settings) {
  const double timeout_s = std::stod(settings.at("timeout_s"));
  const World world = init({.join_timeout_s = 30, .collective_timeout_s = timeout_s, .warn_after_s = timeout_s / 3});
  say(c10::str("pid ", getpid()));
  Fault fault(settings, world);
  const Model model("layers", std::make_shared<Layers>(fault));
  parallel::DistributedOptions options{.bucket_bytes = 9000, .first_bucket_bytes = 1000};
  if (fault.where == "all_reduce") options.hook = std::make_shared<MeanAndFault>(fault);
  const parallel::DistributedDataParallel ddp(model, world, options);
  NamedTensors velocities;
  for (const auto& [name, parameter] : model.named_parameters())
    velocities.emplace_back(name, at::zeros_like(parameter.detach()));
  checkpoint::ShardedFolder folder(path, world);
  auto state = state_of(ddp, velocities, 0);
  if (folder.newest(state)) ddp.restore({{"buckets", state.extra[0].local}});
  say(c10::str("goes on from step ", state.step));
  const auto start = std::chrono::steady_clock::now();
  for (fault.now = state.step + 1; fault.now <= std::stoll(settings.at("steps")); ++fault.now) {
    const at::Tensor batch = numbers({12, 32}, 1000 + static_cast<uint64_t>(fault.now));
    ddp.forward(batch.tensor_split(world.size())[world.rank()]).square().mean().backward();
    update(model, velocities);
    if (fault.is_due("save") && fault.rank == fault.victim) die_in_the_next_file(fault.signal);
    if (fault.now % 2 == 0) folder.save(state_of(ddp, velocities, fault.now));
    say(c10::str("step ", fault.now));
    std::this_thread::sleep_for(std::chrono::milliseconds(std::stoi(settings.at("pause_ms"))));
  }
  comm::barrier(world);
  say(c10::str("trained in ", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), " s"));
}

}  // namespace

}  // namespace bellows::testing

int main(int argc, char** argv) try {
  bellows::testing::Settings settings = {{"steps", "12"},     {"pause_ms", "0"}, {"timeout_s", "60"}, {"fault", ""},
                                         {"fault_step", "6"}, {"victim", "1"},   {"signal", "9"}};
  for (int i = 2; i < argc; ++i) {
    const std::string text = argv[i];
    settings.at(text.substr(0, text.find('='))) = text.substr(text.find('=') + 1);
  }
  bellows::testing::train(argv[1], settings);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", bellows::user_message(error).c_str());
  return 1;
}
