// Gradient clipping against Python PyTorch: alone, and as a part of a fused AdamW step.
#include <torch/torch.h>

#include <cmath>
#include <memory>

#include "bellows/optim/clip.h"
#include "bellows/optim/optimizers.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {

namespace {

// 25 M parameters in 160 tensors: matrices and vectors in turn, as in a network.
constexpr int64_t pairs = 80, matrix = 311476, vector = 1024;

/// As bench/peers/clip.py makes them: the same generator gives the same numbers.
std::vector<at::Tensor> make_parameters() {
  torch::manual_seed(0);
  std::vector<at::Tensor> parameters;
  for (int64_t i = 0; i < 2 * pairs; ++i) {
    const int64_t size = i % 2 ? vector : matrix;
    parameters.push_back(torch::randn(size).requires_grad_());
    parameters.back().mutable_grad() = torch::randn(size);
  }
  return parameters;
}

/// Of all parameters, so many bytes each. What is read again stays in the caches in part, as in the loops of the limit.
double traffic_seconds(double bytes_per_parameter, int64_t arrays) {
  const auto array = static_cast<size_t>(4 * pairs * (matrix + vector));
  return bytes_per_parameter / 4 * static_cast<double>(array) / memory_bytes_per_s(static_cast<size_t>(arrays) * array);
}

class Ours {
 public:
  Ours() : parameters_(make_parameters()), adamw_(parameters_, optim::AdamWOptions{.impl = optim::Impl::fused}) {}

  /// The limit falls from call to call, so that there always is something to clip.
  void clip() { optim::clip_grad_norm_(parameters_, next_limit()); }
  void clip_nothing() { optim::clip_grad_norm_(parameters_, 1e9); }
  void step() { adamw_.step(); }
  void clip_then_step() {
    clip();
    step();
  }
  void clip_and_step() { optim::clip_and_step(adamw_, next_limit()); }

  /// Norm before, norm after, sum of the parameters after a step.
  std::vector<double> check() {
    const auto parameters = make_parameters();
    optim::AdamW adamw(parameters, optim::AdamWOptions{.impl = optim::Impl::fused});
    const auto before = optim::clip_grad_norm_(parameters, 1000).item<double>();
    std::vector<at::Tensor> grads;
    for (const at::Tensor& p : parameters) grads.push_back(p.grad());
    adamw.step();
    double sum = 0;
    for (const at::Tensor& p : parameters) sum += p.detach().abs().sum(at::kDouble).item<double>();
    return {before, optim::get_total_norm(grads).item<double>(), sum};
  }

 private:
  double next_limit() { return limit_ = limit_ < 1 ? 1000 : limit_ * 0.999; }

  std::vector<at::Tensor> parameters_;
  optim::AdamW adamw_;
  double limit_ = 1000;
};

/// One Python process: `use WHAT` chooses what `run` means.
class ClipPeer {
 public:
  explicit ClipPeer(const Options& options) : process_({options.peer_python, source_dir() + "/bench/peers/clip.py"}) {}
  std::vector<double> check() { return process_.ask_numbers("check"); }
  Contestant as_contestant(const std::string& name, const std::string& what) {
    return {name, [this, what](int64_t n) {
              process_.ask("use " + what);
              return process_.run(n);
            }};
  }

 private:
  PeerProcess process_;
};

bool agree(const std::vector<double>& a, const std::vector<double>& b) {
  bool result = a.size() == b.size();
  for (size_t i = 0; result && i < a.size(); ++i) result = std::abs(a[i] - b[i]) <= 1e-5 * std::abs(b[i]);
  return result;
}

struct ClipWork {
  std::string name;
  std::vector<Contestant> ours;
  std::vector<std::string> peers;   ///< names for bench/peers/clip.py
  std::function<double()> limit_s;  ///< that the memory allows in these minutes
};

double measure(const ClipWork& work, const Options& options, ClipPeer* peer, bool equal, double without,
               Report& report) {
  if (!report.has_time_for(work.name)) return 0;
  std::vector<Contestant> sides = work.ours;
  if (peer) {
    for (const std::string& what : work.peers) sides.push_back(peer->as_contestant("Python, " + what, what));
  }
  const Comparison comparison = compare(sides, {.window_s = options.quick ? 0.2 : 0.5,
                                                .windows = options.quick ? 5 : 15,
                                                .budget_s = options.quick ? 10 : 1e9,
                                                .before_round = [&] { work.limit_s(); }});
  Row row = time_row("25 M in 160 tensors, " + work.name, "time per call", "ms", comparison, equal);
  row.limit = 1e3 * work.limit_s();
  if (without > 0) {
    char text[64];
    std::snprintf(text, sizeof text, "clipping adds %.1f %% to the step",
                  100 * (comparison.ours().seconds() / without - 1));
    row.note = text;
  }
  report.add(std::move(row));
  return comparison.ours().seconds();
}

int run(const Options& options) {
  Report report("clip", options);
  Ours ours;
  std::unique_ptr<ClipPeer> peer;
  if (!options.peer_python.empty()) peer = std::make_unique<ClipPeer>(options);
  const bool equal = !peer || agree(ours.check(), peer->check());
  // A clip reads the gradients and scales them in place; a step reads four arrays and writes three.
  const auto read = [] { return traffic_seconds(4, 1); };
  const auto clip = [] { return traffic_seconds(4 + 8, 1); };
  const auto step = [] { return traffic_seconds(28, 4); };
  const auto one = [&](const char* name, void (Ours::*call)()) {
    return timed_contestant(name, [&ours, call] { (ours.*call)(); });
  };
  measure({"clip_grad_norm_ below the norm", {one("ours", &Ours::clip)}, {"clip", "clip_loop"}, clip}, options,
          peer.get(), equal, 0, report);
  measure({"clip_grad_norm_ above the norm", {one("ours", &Ours::clip_nothing)}, {"clip_nothing"}, read}, options,
          peer.get(), equal, 0, report);
  const double alone =
      measure({"fused AdamW step", {one("ours", &Ours::step)}, {"step"}, step}, options, peer.get(), equal, 0, report);
  measure({"clipped AdamW step, in one call",
           {one("ours, clip_and_step", &Ours::clip_and_step)},
           {"clip_then_step"},
           [&] { return step() + read(); }},
          options, peer.get(), equal, alone, report);
  measure({"clipped AdamW step, in two calls",
           {one("ours, clip, then step", &Ours::clip_then_step)},
           {"clip_then_step"},
           [&] { return step() + clip(); }},
          options, peer.get(), equal, alone, report);
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(argc, argv,
                    "Clips the gradients of 25 M fp32 parameters in 160 tensors by their norm: alone, before a fused "
                    "AdamW step, and inside the\nstep. Compares Bellows with torch.nn.utils.clip_grad_norm_. Before "
                    "that, the norms and parameters are compared.",
                    run);
}
