// Mixed precision against Python PyTorch: a training step of ResNet-18 and of a transformer encoder under bf16 autocast
// and under policy O2, and matrix products by dtype.
#include <torch/torch.h>

#include <cmath>
#include <memory>

#include "bellows/amp.h"
#include "bellows/core/channels_last.h"
#include "bellows/inspect/op_counter.h"
#include "bellows/models/formula_weights.h"
#include "bellows/models/resnet.h"
#include "bellows/optim/optimizers.h"
#include "bench/amp/encoder.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {

namespace {

constexpr double learning_rate = 1e-3, momentum = 0.9;

/// A model, its data and its loss; both sides build it from the same formula.
struct Task {
  std::string name;  ///< the peer's word for it
  Model model;
  at::Tensor x;
  std::function<at::Tensor(const at::Tensor& output)> loss;
};

struct Sizes {
  int64_t images, image_size, classes;
  EncoderOptions encoder;
  int64_t sequences, length;
};

Task resnet_task(const Sizes& s) {
  Model model = models::resnet18({.num_classes = s.classes});
  models::set_formula_weights(model);
  to_channels_last(model);
  const at::Tensor x = models::formula_uniform("input", {s.images, 3, s.image_size, s.image_size}).to(at::kFloat);
  const at::Tensor y = models::formula_labels("labels", s.images, s.classes);
  return {"resnet", model, x.contiguous(at::MemoryFormat::ChannelsLast),
          [y](const at::Tensor& output) { return torch::cross_entropy_loss(output, y); }};
}

Task encoder_task(const Sizes& s, bool libtorch) {
  Model model = libtorch ? libtorch_encoder(s.encoder) : encoder(s.encoder);
  NamedTensors parameters = model.named_parameters();
  for (auto& [name, tensor] : parameters) {
    if (libtorch) name = name.substr(4);  // "net."
  }
  models::set_formula_weights(parameters);
  const std::vector<int64_t> shape = {s.sequences, s.length, s.encoder.hidden};
  const at::Tensor y = models::formula_uniform("target", shape).to(at::kFloat);
  return {"encoder", model, models::formula_uniform("input", shape).to(at::kFloat),
          [y](const at::Tensor& output) { return torch::mse_loss(output, y); }};
}

/// A training loop under a policy, as a user would write it.
class OurRun {
 public:
  OurRun(std::string name, Task task, const amp::Policy& policy)
      : name_(std::move(name)),
        task_(std::move(task)),
        prepared_(amp::apply(task_.model, policy)),
        optimizer_(prepared_.model.parameters(), optim::SGDOptions{.lr = learning_rate, .momentum = momentum}) {
    prepared_.masters.attach(optimizer_);
    prepared_.model.train();
  }

  at::Tensor step() {
    optimizer_.zero_grad();
    const at::Tensor loss = task_.loss(prepared_.model.forward(task_.x));
    loss.backward();
    prepared_.masters.take_gradients();
    optimizer_.step();
    prepared_.masters.write_back();
    return loss;
  }

  std::vector<double> losses(int64_t count) {
    std::vector<double> result;
    for (int64_t i = 0; i < count; ++i) result.push_back(step().item<double>());
    return result;
  }

  /// Multiplications and additions of a step.
  double flops() {
    return static_cast<double>(inspect::count_ops(prepared_.model, [this] { step(); }).total().flops);
  }

  Contestant as_contestant() {
    return timed_contestant(name_, [this] { step(); });
  }

 private:
  std::string name_;
  Task task_;
  amp::PreparedModel prepared_;
  optim::SGD optimizer_;
};

/// bench/peers/amp.py: `losses TASK N`, `use TASK`, `gemm DTYPE N`, then `run N`.
class Peer {
 public:
  Peer(const Options& options, const Sizes& s)
      : process_({options.peer_python,
                  source_dir() + "/bench/peers/amp.py",
                  "--images",
                  std::to_string(s.images),
                  "--size",
                  std::to_string(s.image_size),
                  "--classes",
                  std::to_string(s.classes),
                  "--layers",
                  std::to_string(s.encoder.layers),
                  "--hidden",
                  std::to_string(s.encoder.hidden),
                  "--heads",
                  std::to_string(s.encoder.heads),
                  "--feed-forward",
                  std::to_string(s.encoder.feed_forward),
                  "--sequences",
                  std::to_string(s.sequences),
                  "--length",
                  std::to_string(s.length),
                  "--lr",
                  std::to_string(learning_rate),
                  "--momentum",
                  std::to_string(momentum)}) {}

  std::vector<double> ask(const std::string& line) { return process_.ask_numbers(line, 300); }

  /// Params: work – what `use` is told before each window
  Contestant as_contestant(const std::string& name, const std::string& work) {
    return {"Python, " + name, [this, work](int64_t n) {
              process_.ask("use " + work);
              return process_.run(n);
            }};
  }

 private:
  PeerProcess process_;
};

bool close(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  bool result = a.size() == b.size();
  for (size_t i = 0; result && i < a.size(); ++i) result = std::abs(a[i] - b[i]) <= tolerance * std::abs(b[i]);
  return result;
}

/// Sides of one row: ours under each policy, then the peer's autocast.
Row measure_training(const std::string& work, std::vector<OurRun*> ours, const std::string& task, Peer* peer,
                     const Options& options) {
  const int64_t checked_steps = options.quick ? 2 : 5;
  std::vector<Contestant> sides;
  std::vector<std::vector<double>> losses;
  for (OurRun* run : ours) {
    losses.push_back(run->losses(checked_steps));
    sides.push_back(run->as_contestant());
  }
  if (peer) {
    losses.push_back(peer->ask("losses " + task + " " + std::to_string(checked_steps)));
    sides.push_back(peer->as_contestant("bf16 autocast", task));
  }
  bool equal = true;
  for (const auto& other : losses) equal = close(losses.front(), other, 0.05) && equal;
  const Comparison comparison = compare(sides, {.units = options.quick ? 1 : 4,
                                                .windows = options.quick ? 3 : 9,
                                                .warmup = options.quick ? 0 : 1,
                                                .budget_s = options.quick ? 4 : 1e9,
                                                .before_round = [] { gemm_flops_per_s(at::kBFloat16); }});
  Row row = time_row(work, "time per step", "ms", comparison, equal);
  row.limit = 1e3 * ours.front()->flops() / gemm_flops_per_s(at::kBFloat16);
  return row;
}

void measure_models(Report& report, const Sizes& sizes, Peer* peer, const Options& options) {
  const amp::Policy o1 = amp::policy("O1"), o2 = amp::policy("O2");
  const auto add = [&](const std::string& work, OurRun& ours, const std::string& task) {
    if (report.has_time_for(work)) report.add(measure_training(work, {&ours}, task, peer, options));
  };
  {
    OurRun autocast("ours, O1 (autocast)", resnet_task(sizes), o1), master("ours, O2", resnet_task(sizes), o2);
    const std::string work = c10::str("ResNet-18 step, batch ", sizes.images, ", ", sizes.image_size, "x",
                                      sizes.image_size, ", bf16, channels-last");
    add(work, autocast, "resnet");
    add(work + ", O2", master, "resnet");
  }
  OurRun autocast("ours, O1 (autocast)", encoder_task(sizes, false), o1);
  OurRun master("ours, O2", encoder_task(sizes, false), o2);
  OurRun modules("ours, O1, torch::nn modules", encoder_task(sizes, true), o1);
  const std::string work = c10::str(sizes.encoder.layers, "-layer encoder step, ", sizes.encoder.hidden, " wide, ",
                                    sizes.sequences, "x", sizes.length, ", bf16");
  add(work, autocast, "encoder");
  add(work + ", O2", master, "encoder");
  add(work + ", torch::nn::TransformerEncoder", modules, "encoder");
}

struct Dtype {
  std::string name;
  at::ScalarType type;
  double tolerance;
};

/// Matrix products of one size in every dtype. The note compares with fp32 and fp64: what half precision is said to
/// bring.
void measure_products(Report& report, int64_t n, Peer* peer, const Options& options) {
  const std::vector<Dtype> dtypes = {{"fp64", at::kDouble, 1e-12},
                                     {"fp32", at::kFloat, 1e-5},
                                     {"fp16", at::kHalf, 1e-2},
                                     {"bf16", at::kBFloat16, 5e-2}};
  const double giga_flop = 2e-9 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  double fp64_rate = 0, fp32_rate = 0;
  for (const Dtype& dtype : dtypes) {
    const at::Tensor a = models::formula_uniform("a", {n, n}).to(dtype.type),
                     b = models::formula_uniform("b", {n, n}).to(dtype.type);
    std::vector<Contestant> sides = {timed_contestant("ours, " + dtype.name, [&] { at::mm(a, b); })};
    bool equal = true;
    const at::Tensor c = at::mm(a, b).to(at::kDouble);
    if (peer) {
      const std::string work = "gemm-" + dtype.name + "-" + std::to_string(n);
      equal =
          close({c.abs().sum().item<double>(), c[0][0].item<double>()}, peer->ask("product " + work), dtype.tolerance);
      sides.push_back(peer->as_contestant(dtype.name, work));
    }
    const Comparison comparison = compare(
        sides, {.window_s = options.quick ? 0.1 : 0.5, .windows = options.quick ? 5 : 9, .warmup = 1, .budget_s = 20});
    Row row = rate_row(c10::str("product of ", n, "x", n, " matrices, ", dtype.name), "rate", "GFLOP/s", comparison,
                       equal, giga_flop);
    if (dtype.type == at::kDouble) fp64_rate = row.ours;
    if (dtype.type == at::kFloat) fp32_rate = row.ours;
    char note[64];
    std::snprintf(note, sizeof note, "%.1f times fp32, %.1f times fp64", row.ours / fp32_rate, row.ours / fp64_rate);
    if (at::isReducedFloatingType(dtype.type)) row.note = note;
    report.add(std::move(row));
  }
}

int run(const Options& options) {
  Report report("amp", options);
  Sizes sizes = {.images = 32, .image_size = 64, .classes = 1000, .encoder = {}, .sequences = 8, .length = 128};
  if (options.quick) {
    sizes.encoder.hidden = 256;
    sizes.encoder.feed_forward = 1024;
    sizes.length = 32;
  }
  std::unique_ptr<Peer> peer;
  if (!options.peer_python.empty()) peer = std::make_unique<Peer>(options, sizes);
  measure_models(report, sizes, peer.get(), options);
  for (const int64_t n : {1024, 2048}) measure_products(report, n, peer.get(), options);
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(argc, argv,
                    "Times training steps of ResNet-18 (batch 32, 64x64) and of a 12-layer transformer encoder in "
                    "bf16: with autocast (O1), and\nwith bf16 weights and fp32 master weights (O2), against Python's "
                    "autocast with the same weights. Before that, the losses\nof the first steps are compared. Then "
                    "times matrix multiplications in fp64, fp32, fp16 and bf16.",
                    run);
}
