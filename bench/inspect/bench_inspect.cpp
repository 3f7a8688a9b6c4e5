// What each tool of inspect adds to a training step, beside Python's tools for the same purpose.
#include <torch/torch.h>

#include <cmath>
#include <memory>

#include "bellows/inspect.h"
#include "bellows/models/formula_weights.h"
#include "bellows/models/resnet.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {

namespace {

constexpr int64_t batch = 8, side = 8, classes = 10;

/// A step so small that the tools' work for each operator shows: forward, loss, backward of the digits ResNet.
class Step {
 public:
  Step() : model_(models::digits_resnet()) {
    models::set_formula_weights(model_);
    x_ = models::formula_uniform("input", {batch, 1, side, side}).to(torch::kFloat32);
    y_ = models::formula_labels("labels", batch, classes);
    model_.train();
  }

  double loss() {
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
    const at::Tensor value = torch::cross_entropy_loss(model_.forward(x_), y_);
    value.backward();
    return value.item<double>();
  }

  const Model& model() const { return model_; }

 private:
  Model model_;
  std::vector<at::Tensor> parameters_ = model_.parameters();
  at::Tensor x_, y_;
};

/// One tool, alive while the returned object is, and the peer's names for what serves the same purpose.
struct Tool {
  std::string name;
  std::function<std::shared_ptr<void>(const Model&)> install;
  std::vector<std::string> peers;
};

template <class T, class... Args>
std::function<std::shared_ptr<void>(const Model&)> plain_tool(Args... args) {
  return [args...](const Model&) { return std::make_shared<T>(args...); };
}

std::vector<Tool> all_tools() {
  using namespace inspect;
  using Counting = SyncDetector::Options;
  return {
      {"MemoryScope", plain_tool<MemoryScope>(), {"profiler_memory"}},
      {"OpCounter with modules",
       [](const Model& model) { return std::make_shared<OpCounter>(model); },
       {"flop_counter"}},
      {"SyncDetector, counting", plain_tool<SyncDetector>(Counting{SyncAction::count, true, false}), {}},
      {"SyncDetector with call sites", plain_tool<SyncDetector>(Counting{SyncAction::count, true, true}), {}},
      {"RandomGuard", plain_tool<RandomGuard>(), {}},
      {"FirstNan", plain_tool<FirstNan>(), {"detect_anomaly"}},
      {"StepTracer", plain_tool<StepTracer>(TraceOptions{.memory = false}), {"profiler"}},
      {"DeterministicGuard", plain_tool<DeterministicGuard>(), {"deterministic"}},
  };
}

Contestant contestant(std::string name, Step& step, std::function<std::shared_ptr<void>(const Model&)> install) {
  return {std::move(name), [&step, install](int64_t n) {
            return seconds_of([&] {
              const auto tool = install ? install(step.model()) : nullptr;
              for (int64_t i = 0; i < n; ++i) step.loss();
            });
          }};
}

Contestant peer_contestant(PeerProcess& peer, const std::string& tool) {
  return {"Python " + tool, [&peer, tool](int64_t n) {
            peer.ask("use " + tool);
            return peer.run(n);
          }};
}

/// Batch norm's running statistics do not enter a training step's loss, so every step gives the same one.
bool same_losses(Step& step, const Tool& tool, PeerProcess* peer) {
  const double plain = step.loss();
  double watched = NAN;
  {
    const auto alive = tool.install(step.model());
    watched = step.loss();
  }
  bool equal = watched == plain;
  if (!peer) return equal;
  for (const std::string& name : tool.peers) {
    peer->ask("use " + name);
    equal = equal && std::abs(peer->ask_numbers("loss").at(0) - plain) <= 1e-5 * std::abs(plain);
  }
  return equal;
}

int run(const Options& options) {
  at::set_num_threads(1);
  Report report("inspect", options);
  std::unique_ptr<PeerProcess> peer;
  if (!options.peer_python.empty()) {
    peer = std::make_unique<PeerProcess>(
        std::vector<std::string>{options.peer_python, source_dir() + "/bench/peers/inspect_tools.py"});
  }
  Step step;
  inspect::memory_stats();  // the allocator hook stays: let it be there from the start, for all sides
  for (const Tool& tool : all_tools()) {
    const bool equal = same_losses(step, tool, peer.get());
    std::vector<Contestant> sides = {contestant("ours", step, tool.install), contestant("plain", step, nullptr)};
    if (peer && !tool.peers.empty()) {
      sides.push_back(peer_contestant(*peer, "none"));
      for (const std::string& name : tool.peers) sides.push_back(peer_contestant(*peer, name));
    }
    const Comparison all =
        compare(sides, {.units = options.quick ? 30 : 150, .windows = options.quick ? 7 : 15, .budget_s = 20});
    report.add(added_time_row(tool.name + ", digits ResNet step, batch 8", "added time per step", "us", all, equal));
  }
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Measures the time that each tool of bellows/inspect adds to a small training step (about 60 forward operators). "
      "Also\nmeasures Python's FLOP counter, profiler, anomaly detection and deterministic mode. Uses one thread.",
      run);
}
