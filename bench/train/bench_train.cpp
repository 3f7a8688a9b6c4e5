// A full training step of ResNet-18 against Python PyTorch: forward, loss, backward, optimizer.
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <optional>

#include "bellows/amp/autocast.h"
#include "bellows/core/channels_last.h"
#include "bellows/models/formula_weights.h"
#include "bellows/models/resnet.h"
#include "bellows/optim/optimizers.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {

namespace {

constexpr int64_t batch = 32, image_size = 64, classes = 1000;
constexpr double learning_rate = 1e-3, momentum = 0.9;

/// Ours: a model and what Bellows offers a plain loop.
struct Variant {
  std::string name;
  bool channels_last = false, bf16 = false;
  optim::Impl optimizer = optim::Impl::loop;
};

class OurRun {
 public:
  explicit OurRun(const Variant& variant) : variant_(variant), model_(models::resnet18({.num_classes = classes})) {
    models::set_formula_weights(model_);
    x_ = models::formula_uniform("input", {batch, 3, image_size, image_size}).to(torch::kFloat32);
    y_ = models::formula_labels("labels", batch, classes);
    if (variant.channels_last) {
      to_channels_last(model_);
      x_ = x_.contiguous(at::MemoryFormat::ChannelsLast);
    }
    optimizer_.emplace(model_.parameters(),
                       optim::SGDOptions{.lr = learning_rate, .momentum = momentum, .impl = variant.optimizer});
    model_.train();
  }

  at::Tensor step() {
    optimizer_->zero_grad();
    const at::Tensor loss = forward();
    loss.backward();
    optimizer_->step();
    return loss;
  }

  std::vector<double> losses(int64_t count) {
    std::vector<double> result;
    for (int64_t i = 0; i < count; ++i) result.push_back(step().item<double>());
    return result;
  }

  Contestant as_contestant() {
    return timed_contestant("ours, " + variant_.name, [this] { step(); });
  }

 private:
  at::Tensor forward() {
    const amp::AutocastGuard guard(c10::kCPU, at::kBFloat16, variant_.bf16);
    return torch::cross_entropy_loss(model_.forward(x_), y_);
  }

  Variant variant_;
  Model model_;
  at::Tensor x_, y_;
  std::optional<optim::SGD> optimizer_;
};

/// One Python process holds all its variants: `losses NAME N` makes one anew and runs N steps, `use NAME` chooses what
/// `run` means.
class Peer {
 public:
  explicit Peer(const Options& options)
      : process_({options.peer_python, source_dir() + "/bench/peers/train.py", "--batch", std::to_string(batch),
                  "--size", std::to_string(image_size), "--classes", std::to_string(classes), "--lr",
                  std::to_string(learning_rate), "--momentum", std::to_string(momentum)}) {}

  std::vector<double> losses(const std::string& variant, int64_t count) {
    return process_.ask_numbers("losses " + variant + " " + std::to_string(count));
  }

  Contestant as_contestant(const std::string& variant) {
    return {"Python, " + variant, [this, variant](int64_t n) {
              process_.ask("use " + variant);
              return process_.run(n);
            }};
  }

 private:
  PeerProcess process_;
};

/// One row: a variant of ours against the peers that do the same work.
struct Work {
  std::string name;
  Variant ours;
  std::vector<std::string> peers;
  double tolerance;  ///< relative, of the losses of the first steps
};

std::vector<Work> all_work() {
  const std::string shape = "ResNet-18 step, batch 32, 64x64, ";
  using optim::Impl;
  return {{shape + "fp32", {.name = "plain loop"}, {"eager"}, 1e-3},
          {shape + "fp32, channels-last", {.name = "channels-last", .channels_last = true}, {"channels_last"}, 1e-3},
          {shape + "fp32, best of each",
           {.name = "channels-last, fused", .channels_last = true, .optimizer = Impl::fused},
           {"eager", "channels_last", "channels_last_foreach", "channels_last_fused"},
           1e-3},
          {shape + "bf16 autocast, best of each",
           {.name = "channels-last, fused, bf16", .channels_last = true, .bf16 = true, .optimizer = Impl::fused},
           {"bf16", "bf16_channels_last", "bf16_channels_last_fused"},
           5e-2}};
}

bool close(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  bool result = a.size() == b.size();
  for (size_t i = 0; result && i < a.size(); ++i) result = std::abs(a[i] - b[i]) <= tolerance * std::abs(b[i]);
  return result;
}

/// Multiplications and additions of ResNet-18's convolutions and last layer, one image forward: {all, the first
/// convolution}.
std::pair<double, double> forward_flops() {
  const auto halved = [](int64_t n) { return (n + 1) / 2; };
  int64_t side = halved(image_size), channels = 64, macs = side * side * 64 * 3 * 49;
  const int64_t first = macs;
  side = halved(side);
  for (const int64_t width : {64, 128, 256, 512}) {
    if (width != channels) {
      side = halved(side);
      macs += side * side * width * channels;
    }
    macs += side * side * width * (channels + 3 * width) * 9;
    channels = width;
  }
  return {2.0 * static_cast<double>(macs + channels * classes), 2.0 * static_cast<double>(first)};
}

/// Backward costs twice the forward pass; the images themselves need no gradient.
double step_flops() {
  const auto [all, first] = forward_flops();
  return static_cast<double>(batch) * (3 * all - first);
}

std::string share_of_limit(double gemm, double step_s) {
  char text[128];
  std::snprintf(text, sizeof text,
                "%.1f GFLOP per step at %.0f GFLOP/s, %.0f %% of the GEMM peak of %.0f GFLOP/s in this run",
                step_flops() / 1e9, step_flops() / step_s / 1e9, 100 * step_flops() / step_s / gemm, gemm / 1e9);
  return text;
}

Row measure(const Work& work, const Options& options, Peer* peer) {
  OurRun ours(work.ours);
  const int64_t checked_steps = options.quick ? 2 : 5;
  const std::vector<double> losses = ours.losses(checked_steps);
  bool equal = true;
  std::vector<Contestant> sides = {ours.as_contestant()};
  if (peer) {
    for (const std::string& variant : work.peers) {
      equal = close(losses, peer->losses(variant, checked_steps), work.tolerance) && equal;
      sides.push_back(peer->as_contestant(variant));
    }
  }
  const auto gemm_rate = [&] { return gemm_flops_per_s(work.ours.bf16 ? at::kBFloat16 : at::kFloat); };
  const Comparison comparison = compare(sides, {.units = options.quick ? 1 : 5,
                                                .windows = options.quick ? 5 : 11,
                                                .warmup = options.quick ? 0 : 1,
                                                .budget_s = options.quick ? 6 : 1e9,
                                                .before_round = gemm_rate});
  const double gemm = gemm_rate();
  Row row = time_row(work.name, "time per step", "ms", comparison, equal);
  row.limit = 1e3 * step_flops() / gemm;
  row.note = share_of_limit(gemm, comparison.ours().seconds());
  return row;
}

int run(const Options& options) {
  Report report("train", options);
  std::unique_ptr<Peer> peer;
  if (!options.peer_python.empty()) peer = std::make_unique<Peer>(options);
  for (const Work& work : all_work()) {
    if (report.has_time_for(work.name)) report.add(measure(work, options, peer.get()));
  }
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Times a training step of ResNet-18 (batch 32, 64x64): forward, loss, backward, and SGD with momentum. Compares "
      "Bellows with\nPython PyTorch from the same weights. Before that, the losses of the first steps are compared.",
      run);
}
