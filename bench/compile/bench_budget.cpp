// Compiled training steps under a memory budget: their time and peak memory, compared with no budget and with checkpointed blocks.
#include <torch/torch.h>

#include <sys/wait.h>
#include <unistd.h>

#include <limits>
#include <memory>

#include "bellows/compile/compile.h"
#include "bellows/models/bert.h"
#include "bellows/models/blocks.h"
#include "bellows/models/formula_weights.h"
#include "bellows/models/resnet.h"
#include "bellows/recompute/activation_checkpoint.h"
#include "bellows/tap/allocator.h"
#include "bench/support/bench.h"

namespace bellows::bench {
namespace {

constexpr int64_t classes = 10;
constexpr double learning_rate = 1e-3, momentum = 0.9;

struct Network {
  std::string name, about;
  std::function<Model()> model;
  std::function<at::Tensor()> input;
};

Model bert_of(models::BertOptions options) {
  options.num_labels = classes;
  options.hidden_dropout_prob = options.attention_probs_dropout_prob = 0;
  options.mask_padding = false;
  return models::bert(options);
}

at::Tensor ids(int64_t batch, int64_t length) {
  return models::formula_labels("ids", batch * length, 30521).view({batch, length}) + 1;
}

at::Tensor images(int64_t batch, int64_t size) {
  return models::formula_uniform("input", {batch, 3, size, size}).to(torch::kFloat32);
}

std::vector<Network> all_networks() {
  return {
      {"bert-20m", "BERT with 20 M parameters, 8x128, SGD", [] { return bert_of(models::bert_20m()); },
       [] { return ids(8, 128); }},
      {"resnet50", "ResNet-50, 8x128x128, SGD", [] { return models::resnet50({.num_classes = classes}); },
       [] { return images(8, 128); }},
      {"bert-base", "BERT-base, 8x128, SGD", [] { return bert_of(models::bert_base()); }, [] { return ids(8, 128); }}};
}

/// A compiled step of an own model. The allocator counts the bytes of its peak.
class BudgetedStep {
 public:
  BudgetedStep(const Network& network, double budget, bool checkpoints)
      : model_(network.model()), x_(network.input()), y_(models::formula_labels("labels", x_.size(0), classes)) {
    models::set_formula_weights(model_);
    model_.train();
    if (checkpoints)
      models::run_blocks_by(
          model_, [](const models::Block& block, const at::Tensor& x) { return recompute::checkpoint(block, x); });
    optimizer_ = std::make_shared<torch::optim::SGD>(model_.parameters(),
                                                     torch::optim::SGDOptions(learning_rate).momentum(momentum));
    step_.emplace([this] { return step(); }, CompileOptions{.always = true, .memory_budget = budget});
    for (int call = 0; call < 4; ++call) losses_.push_back((*step_)().item<double>());
  }

  void run() { (*step_)(); }
  const std::vector<double>& losses() const { return losses_; }
  /// Returns the peak of a step without the weights and their momentum.
  double peak_mb() {
    int64_t kept = 0;
    for (const at::Tensor& weight : model_.parameters()) kept += 2 * static_cast<int64_t>(weight.nbytes());
    tap::reset_cpu_allocation_peak();
    run();
    return static_cast<double>(tap::cpu_allocation_counters().peak_bytes - kept) / 1e6;
  }
  std::string recomputation() const {
    const std::string all = step_->explain().to_text();
    const size_t last = all.rfind("recomputation:");
    return last == std::string::npos ? "" : all.substr(last, all.find(')', all.find("original", last)) - last + 1);
  }

 private:
  at::Tensor step() {
    optimizer_->zero_grad();
    const at::Tensor loss = torch::cross_entropy_loss(model_.forward(x_), y_);
    loss.backward();
    optimizer_->step();
    return loss.detach();
  }

  Model model_;
  at::Tensor x_, y_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<Compiled<std::function<at::Tensor()>>> step_;
  std::vector<double> losses_;
};

struct Way {
  std::string name;
  double budget;
  bool checkpoints = false;
};

/// Measures the peak in an own process, because the programs of a process share one arena.
double peak_mb_of(const Network& network, const Way& way) {
  int ends[2] = {};
  TORCH_CHECK(pipe(ends) == 0, "budget: cannot create a pipe.");
  const pid_t pid = fork();
  TORCH_CHECK(pid >= 0, "budget: cannot start a process.");
  if (pid == 0) {
    tap::install_cpu_allocator();
    const double peak = BudgetedStep(network, way.budget, way.checkpoints).peak_mb();
    _exit(write(ends[1], &peak, sizeof peak) == sizeof peak ? 0 : 1);
  }
  close(ends[1]);
  double peak = std::numeric_limits<double>::quiet_NaN();
  const bool complete = read(ends[0], &peak, sizeof peak) == sizeof peak;
  close(ends[0]);
  waitpid(pid, nullptr, 0);
  TORCH_CHECK(complete, "budget: the process that measures memory has failed.");
  return peak;
}

bool alike(const std::vector<double>& a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::abs(a[i] - b[i]) > 1e-2 * std::max(1.0, std::abs(a[i]))) return false;
  }
  return true;
}

const std::vector<Way>& ways() {
  static const std::vector<Way> all{
      {"budget 0.5", 0.5}, {"no budget", 1}, {"budget 0.3", 0.3}, {"checkpointed blocks", 1, true}};
  return all;
}

void measure(const Network& network, const std::vector<double>& peaks, const Options& options, Report& report) {
  std::vector<std::unique_ptr<BudgetedStep>> steps;
  std::vector<Contestant> sides;
  Row memory{.work = network.about, .metric = "peak of a step, without weights and momentum", .unit = "MB"};
  bool equal = true;
  for (const Way& way : ways()) {
    steps.push_back(std::make_unique<BudgetedStep>(network, way.budget, way.checkpoints));
    BudgetedStep& step = *steps.back();
    equal = equal && alike(steps.front()->losses(), step.losses());
    sides.push_back(timed_contestant(way.name, [&step] { step.run(); }));
    if (way.budget < 1) memory.note += (memory.note.empty() ? "" : "; ") + way.name + ": " + step.recomputation();
  }
  const int windows = options.quick ? 3 : 7;
  report.add(time_row(network.about, "time per step", "ms", compare(sides, {.units = 2, .windows = windows}), equal));
  memory.ours = peaks[0];
  for (size_t i = 1; i < peaks.size(); ++i) memory.peers.emplace_back(ways()[i].name, peaks[i]);
  memory.equal = equal;
  report.add(std::move(memory));
}

int run(const Options& options) {
  const std::string& chosen = options.extra.at("network");
  std::vector<Network> networks = all_networks();
  std::erase_if(networks, [&](const Network& one) { return !chosen.empty() && one.name != chosen; });
  TORCH_CHECK_VALUE(!networks.empty(), "budget: expected --network bert-20m, resnet50 or bert-base, got ", chosen, ".");
  if (options.quick) networks.resize(1);
  std::vector<std::vector<double>> peaks;  // first, because a process with threads cannot fork
  for (const Network& network : networks) {
    peaks.emplace_back();
    for (const Way& way : ways()) peaks.back().push_back(peak_mb_of(network, way));
  }
  Report report("budget", options);
  for (size_t i = 0; i < networks.size(); ++i) {
    if (report.has_time_for(networks[i].about)) measure(networks[i], peaks[i], options, report);
  }
  return report.finish();
}

}  // namespace
}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Times compiled training steps under a memory budget, and measures their peak memory. Compares them with "
      "compiled steps without a budget, and with compiled steps whose blocks are checkpointed.\n"
      "--network: one of bert-20m, resnet50 and bert-base.",
      run, {{"network", ""}});
}
