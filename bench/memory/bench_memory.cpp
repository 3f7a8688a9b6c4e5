// Time and memory of a training step in each way that saves memory, and of Python's checkpoint and selective checkpoint.
#include <chrono>
#include <cmath>
#include <iomanip>
#include <optional>
#include <sstream>

#include "bellows/models/formula_weights.h"
#include "bench/memory/variants.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {

namespace {

/// Both sides of one task, plain.
struct Plain {
  Task task;
  std::vector<double> losses;
  StepBytes bytes;
  std::unique_ptr<Training> training;
  std::optional<StepBytes> peers;  ///< of the peer's plain step
};

Contestant as_contestant(const std::string& name, Training& training) {
  return {name, [&](int64_t n) {
            const auto begin = std::chrono::steady_clock::now();
            for (int64_t i = 0; i < n; ++i) training.step();
            return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
          }};
}

Contestant peer_contestant(PeerProcess& peer, const std::string& task, const std::string& variant) {
  return {"Python, " + variant, [&peer, task, variant](int64_t n) {
            return peer.ask_numbers("time " + std::to_string(n) + " " + task + " " + variant, 600).front();
          }};
}

std::vector<double> first_losses(const Task& task, const Variant& variant, int64_t count) {
  models::set_formula_weights(task.model);
  Training training(task, variant);
  std::vector<double> losses;
  for (int64_t i = 0; i < count; ++i) losses.push_back(training.step());
  return losses;
}

bool agree(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  bool result = a.size() == b.size();
  for (size_t i = 0; result && i < a.size(); ++i) result = std::abs(a[i] - b[i]) <= tolerance * std::abs(b[i]);
  return result;
}

/// "(1.23 GB, -70 %)"
std::string beside(int64_t bytes, int64_t plain) {
  std::ostringstream text;
  text << std::setprecision(3) << static_cast<double>(bytes) / 1e6 << " MB";
  if (bytes != plain)
    text << " (" << std::showpos << std::lround(100.0 * static_cast<double>(bytes) / static_cast<double>(plain) - 100)
         << " %)";
  return text.str();
}

StepBytes peer_bytes(PeerProcess& peer, const std::string& task, const std::string& variant) {
  const std::vector<double> numbers = peer.ask_numbers("bytes " + task + " " + variant, 600);
  return {.kept = static_cast<int64_t>(numbers.at(0)), .peak = static_cast<int64_t>(numbers.at(1))};
}

/// How much longer than plain, window by window.
std::string overhead(const Comparison& comparison, size_t side, size_t plain) {
  const RatioInterval ratio = paired_ratio(comparison.sides[side].windows, comparison.sides[plain].windows);
  std::ostringstream text;
  text << std::showpos << std::fixed << std::setprecision(1) << 100 * (ratio.ratio - 1) << " %";
  return text.str();
}

Row measure(Plain& plain, const Variant& variant, const Options& options, PeerProcess* peer) {
  const int64_t checked = options.quick ? 2 : 3;
  const std::vector<double> losses = first_losses(plain.task, variant, checked);
  const bool equal = agree(losses, plain.losses, variant.tolerance);
  Training training(plain.task, variant);
  training.step();  // makes the optimizer's state, and lets a budget measure
  const StepBytes bytes = training.measured_step();

  std::vector<Contestant> sides = {as_contestant("ours, " + variant.name, training),
                                   as_contestant("ours, plain", *plain.training)};
  const bool with_peer = peer && !variant.peer.empty();
  if (with_peer) {
    sides.push_back(peer_contestant(*peer, plain.task.name, variant.peer));
    sides.push_back(peer_contestant(*peer, plain.task.name, "plain"));
  }
  const Comparison comparison = compare(
      sides, {.units = variant.update_every, .windows = 5, .warmup = 1, .budget_s = options.quick ? 3.0 : 45.0});
  Row row = time_row(plain.task.title + ", " + variant.name, "time per step", "ms", comparison, equal);
  row.note = "kept for backward " + beside(bytes.kept, plain.bytes.kept) + ", peak " +
             beside(bytes.peak, plain.bytes.peak) + ", state " + beside(bytes.state, plain.bytes.state) + ", time " +
             overhead(comparison, 0, 1);
  if (with_peer) {
    const StepBytes theirs = peer_bytes(*peer, plain.task.name, variant.peer);
    row.note += "\n  Python: kept " + beside(theirs.kept, plain.peers->kept) + ", peak " +
                beside(theirs.peak, plain.peers->peak) + ", time " + overhead(comparison, 2, 3);
  }
  return row;
}

Plain make_plain(const std::string& name, const Options& options, PeerProcess* peer) {
  Plain plain{.task = make_task(name)};
  const Variant& first = variants_of(name).front();
  plain.losses = first_losses(plain.task, first, options.quick ? 2 : 3);
  plain.training = std::make_unique<Training>(plain.task, first);
  plain.training->step();
  plain.bytes = plain.training->measured_step();
  if (!peer) return plain;
  plain.peers = peer_bytes(*peer, name, "plain");
  const auto theirs = peer->ask_numbers("losses " + std::to_string(plain.losses.size()) + " " + name + " plain", 600);
  TORCH_CHECK(agree(theirs, plain.losses, 1e-3), "bench memory: Python's plain losses of ", name,
              " are not ours: ", theirs, " against ", plain.losses);
  return plain;
}

int run(const Options& options) {
  Report report("memory", options);
  std::optional<PeerProcess> peer;
  if (!options.peer_python.empty())
    peer.emplace(std::vector<std::string>{options.peer_python, source_dir() + "/bench/peers/memory.py"});
  const std::vector<std::string> tasks = options.quick
                                             ? std::vector<std::string>{"bert-small", "resnet-small", "series-128"}
                                             : std::vector<std::string>{"bert", "resnet", "series-512", "series-1024"};
  for (const std::string& name : tasks) {
    if (name.find(options.extra.at("task")) == std::string::npos) continue;
    Plain plain = make_plain(name, options, peer ? &*peer : nullptr);
    for (const Variant& variant : variants_of(name)) {
      if (variant.name.find(options.extra.at("only")) == std::string::npos) continue;
      report.add(measure(plain, variant, options, peer ? &*peer : nullptr));
    }
  }
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  return bellows::bench::bench_main(
      argc, argv,
      "Training steps of BERT-base and ResNet-50 in the ways that save memory: recompute, selective recompute, a\n"
      "budget, activations in fewer bits or in a file, small optimizers; against plain steps and Python's checkpoint.\n"
      "Losses of the first steps are compared first. Kept: what waits for backward at the end of forward; peak: the\n"
      "most that a step holds; both beside weights and the optimizer's state. A transformer for time series gets "
      "mixed\n"
      "precision, fused layer norms and fused optimizers one after the other. --task and --only take parts of names.",
      bellows::bench::run, {{"task", ""}, {"only", ""}});
}
