// Time and memory of a training step in each way that saves memory, and of Python's checkpoint and selective checkpoint.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iomanip>
#include <map>
#include <optional>
#include <sstream>

#include "bellows/system/allocator_reuse.h"
#include "bench/memory/variants.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {

namespace {

/// Both sides of one task, plain.
struct Plain {
  Task task;
  std::map<std::string, std::vector<double>> losses;  ///< of the variants that others are to be like
  StepBytes bytes;
  at::Tensor gradient;  ///< first_gradient(), where a variant asked for it
  std::unique_ptr<Training> training;
  std::optional<StepBytes> peers;  ///< of the peer's plain step
};

Contestant peer_contestant(PeerProcess& peer, const std::string& task, const std::string& variant) {
  return {"Python, " + variant, [&peer, task, variant](int64_t n) {
            return peer.ask_numbers("time " + std::to_string(n) + " " + task + " " + variant, 600).front();
          }};
}

/// How many losses of a way are held to those of the way that it is to be like.
int64_t checked_steps(const Options& options) {
  return options.quick ? 2 : 3;
}

const std::vector<double>& losses_of(Plain& plain, const std::string& variant, const Options& options) {
  const auto& all = variants_of(plain.task.name);
  const auto found = variant.empty() ? all.begin() : std::ranges::find(all, variant, &Variant::name);
  TORCH_CHECK(found != all.end(), "bench memory: ", plain.task.name, " has no variant \"", variant, "\"");
  auto& losses = plain.losses[found->name];
  if (losses.empty()) losses = Training(plain.task, *found).first_losses(checked_steps(options));
  return losses;
}

/// Params: count – of losses that are compared
bool agree(const std::vector<double>& a, const std::vector<double>& b, double tolerance, size_t count) {
  bool result = a.size() >= count && b.size() >= count;
  for (size_t i = 0; result && i < count; ++i) result = std::abs(a[i] - b[i]) <= tolerance * std::abs(b[i]);
  return result;
}

/// How far gradients are from the plain one, relative: with one seed, and the mean of `seeds`.
struct Noise {
  static constexpr uint64_t seeds = 4;
  double one = 0, mean = 0;
  /// Half as far off without any bias; products of two rounded values have some.
  bool within(double bound) const { return one > 0 && one <= bound && mean <= 0.75 * one; }
};

Noise noise_of(Plain& plain, Training& training) {
  if (!plain.gradient.defined()) plain.gradient = plain.training->first_gradient(1);
  const auto off = [&](const at::Tensor& gradient) {
    return ((gradient - plain.gradient).norm() / plain.gradient.norm()).item<double>();
  };
  Noise noise;
  at::Tensor sum = at::zeros_like(plain.gradient);
  for (uint64_t seed = 1; seed <= Noise::seeds; ++seed) {
    const at::Tensor gradient = training.first_gradient(seed);
    noise.one += off(gradient) / static_cast<double>(Noise::seeds);
    sum += gradient;
  }
  noise.mean = off(sum / static_cast<double>(Noise::seeds));
  return noise;
}

std::string to_string(const Noise& noise) {
  std::ostringstream text;
  text << std::setprecision(2) << "gradient error " << 100 * noise.one << " %, error of the mean of " << Noise::seeds
       << " seeds " << 100 * noise.mean << " %";
  return text.str();
}

/// "(1.23 GB, -70 %)"
std::string beside(int64_t bytes, int64_t plain) {
  std::ostringstream text;
  text << std::setprecision(3) << static_cast<double>(bytes) / 1e6 << " MB";
  const auto percent = std::lround(100.0 * static_cast<double>(bytes) / static_cast<double>(plain) - 100);
  if (percent != 0) text << " (" << std::showpos << percent << " %)";
  return text.str();
}

StepBytes peer_bytes(PeerProcess& peer, const std::string& task, const std::string& variant) {
  const std::vector<double> numbers = peer.ask_numbers("bytes " + task + " " + variant, 600);
  return {.kept = static_cast<int64_t>(numbers.at(0)), .peak = static_cast<int64_t>(numbers.at(1))};
}

bool peer_agrees(PeerProcess& peer, const std::string& task, const std::string& variant,
                 const std::vector<double>& losses, double tolerance) {
  const auto theirs = peer.ask_numbers("losses " + std::to_string(losses.size()) + " " + task + " " + variant, 600);
  const bool result = agree(theirs, losses, tolerance, losses.size());
  if (!result)
    std::fprintf(stderr, "%s, %s: Python's losses are %s\n", task.c_str(), variant.c_str(), c10::str(theirs).c_str());
  return result;
}

/// How much longer than plain, window by window.
std::string overhead(const Comparison& comparison, size_t side, size_t plain) {
  const RatioInterval ratio = paired_ratio(comparison.sides[side].windows, comparison.sides[plain].windows);
  std::ostringstream text;
  text << std::showpos << std::fixed << std::setprecision(1) << 100 * (ratio.ratio - 1) << " %";
  return text.str();
}

/// After which no new round of a row's windows begins.
double row_seconds(const Options& options) {
  const std::string& wanted = options.extra.at("seconds");
  return wanted.empty() ? (options.quick ? 3.0 : 45.0) : std::stod(wanted);
}

/// Ours and plain; and the peer's two, where there is one. All have just made steps: no more are thrown away.
Comparison timed(Plain& plain, const Variant& variant, Training& training, const Options& options, PeerProcess* peer) {
  std::vector<Contestant> sides = {timed_contestant("ours, " + variant.name, [&] { training.step(); }),
                                   timed_contestant("ours, plain", [&] { plain.training->step(); })};
  if (peer) {
    sides.push_back(peer_contestant(*peer, plain.task.name, variant.peer));
    sides.push_back(peer_contestant(*peer, plain.task.name, "plain"));
  }
  return compare(sides, {.units = variant.update_every, .windows = 5, .warmup = 0, .budget_s = row_seconds(options)});
}

Row measure(Plain& plain, const Variant& variant, const Options& options, PeerProcess* peer) {
  if (variant.peer.empty()) peer = nullptr;
  const std::vector<double>& expected = losses_of(plain, variant.like, options);
  Training training(plain.task, variant);
  const std::vector<double> losses = training.first_losses(checked_steps(options));
  bool equal = agree(losses, expected, variant.tolerance, variant.first_only ? 1 : losses.size());
  if (peer && variant.first_only) equal = peer_agrees(*peer, plain.task.name, variant.peer, losses, 0.02) && equal;
  const Noise noise = variant.noise > 0 ? noise_of(plain, training) : Noise{};
  if (variant.noise > 0) equal = noise.within(variant.noise) && equal;
  for (int64_t i = checked_steps(options); i % variant.update_every != 0; ++i) training.step();
  const StepBytes bytes = training.measured_step();

  const std::string work = plain.task.title + ", " + variant.name;
  Row row{.work = work, .metric = "saved for backward", .unit = "MB", .peers = {}, .equal = equal};
  row.ours = static_cast<double>(bytes.kept) / 1e6;
  const StepBytes theirs = peer ? peer_bytes(*peer, plain.task.name, variant.peer) : StepBytes{};
  std::optional<Comparison> times;
  if (row_seconds(options) > 0) {
    times = timed(plain, variant, training, options, peer);
    row = time_row(work, "time per step", "ms", *times, equal);
  }
  row.note = "saved for backward " + beside(bytes.kept, plain.bytes.kept) + ", peak " +
             beside(bytes.peak, plain.bytes.peak) + ", state " + beside(bytes.state, plain.bytes.state) +
             (times ? ", time " + overhead(*times, 0, 1) : "");
  if (variant.noise > 0) row.note += ", " + to_string(noise);
  if (!equal) row.note += c10::str("\n  losses ", losses, ", expected ", expected);
  if (peer)
    row.note += "\n  Python: saved " + beside(theirs.kept, plain.peers->kept) + ", peak " +
                beside(theirs.peak, plain.peers->peak) + (times ? ", time " + overhead(*times, 2, 3) : "");
  return row;
}

Plain make_plain(const std::string& name, const Options& options, PeerProcess* peer) {
  Plain plain{.task = make_task(name)};
  const Variant& first = variants_of(name).front();
  plain.training = std::make_unique<Training>(plain.task, first);
  const std::vector<double> losses = plain.losses[first.name] = plain.training->first_losses(checked_steps(options));
  plain.bytes = plain.training->measured_step();
  if (!peer) return plain;
  plain.peers = peer_bytes(*peer, name, "plain");
  TORCH_CHECK(peer_agrees(*peer, name, "plain", losses, 1e-3), "bench memory: the losses of the plain steps of ", name,
              " in Python differ from ours, ", losses);
  return plain;
}

int run(const Options& options) {
  keep_freed_memory();  // as `bellows train` does
  Report report("memory", options);
  std::optional<PeerProcess> peer;
  if (!options.peer_python.empty())
    peer.emplace(std::vector<std::string>{options.peer_python, source_dir() + "/bench/peers/memory.py"});
  const std::vector<std::string> tasks = options.quick
                                             ? std::vector<std::string>{"bert-small", "resnet-small", "series-128"}
                                             : std::vector<std::string>{"bert", "resnet", "series-512", "series-1024"};
  for (const std::string& name : tasks) {
    if (name.find(options.extra.at("task")) == std::string::npos || !report.has_time_for(name)) continue;
    Plain plain = make_plain(name, options, peer ? &*peer : nullptr);
    for (const Variant& variant : variants_of(name)) {
      if (variant.name.find(options.extra.at("only")) == std::string::npos) continue;
      if (report.has_time_for(name + ", " + variant.name))
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
      "Runs training steps of BERT-base and ResNet-50 with techniques that save memory: recompute, selective "
      "recompute,\na budget, activations in fewer bits or in a file, and optimizers with small state. Compares them "
      "with plain steps\nand with Python's checkpoint. Before that, the losses of the first steps are compared. "
      "\"Saved\" is the memory that is\nsaved for backward. \"Peak\" is the maximum during a step. Both exclude the "
      "weights "
      "and the optimizer state. A transformer for time series gets mixed precision, fused layer "
      "norms and fused optimizers one\nafter the other.\n--task, --only: tasks and variants whose names contain this "
      "text. --seconds: time for the windows of a row, at\nleast two rounds (default: 45, with --quick 3). 0: measure "
      "only bytes and losses.",
      bellows::bench::run, {{"task", ""}, {"only", ""}, {"seconds", ""}});
}
