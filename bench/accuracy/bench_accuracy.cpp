// Do small optimizer states, bf16 weights and compressed activations cost accuracy? Two models are trained to the end in
// each way, from the same seeds.
#include <torch/torch.h>

#include <cstdio>
#include <optional>

#include "bellows/amp/policy.h"
#include "bellows/core/seed.h"
#include "bellows/optim/adafactor.h"
#include "bellows/optim/optimizers.h"
#include "bellows/recompute/compress.h"
#include "bench/accuracy/tasks.h"
#include "bench/support/bench.h"

namespace bellows::bench {

namespace {

constexpr int64_t batch_size = 32;

struct Way {
  std::string name;
  optim::State state = optim::State::automatic;
  bool adafactor = false;
  bool bf16_weights = false;  ///< without fp32 copies, rounded at random; norms in fp32
  std::optional<recompute::ActivationBits> activations{};
};

const std::vector<Way> ways = {
    {.name = "AdamW in fp32"},
    {.name = "8-bit AdamW", .state = optim::State::int8},
    {.name = "Adafactor", .adafactor = true},
    {.name = "int8 activations", .activations = recompute::ActivationBits::int8},
    {.name = "8-bit AdamW, int8 activations",
     .state = optim::State::int8,
     .activations = recompute::ActivationBits::int8},
    {.name = "4-bit AdamW", .state = optim::State::int4},
    {.name = "int4 activations", .activations = recompute::ActivationBits::int4},
    {.name = "bf16 weights", .bf16_weights = true},
    {.name = "bf16 weights, 8-bit AdamW, int8 activations",
     .state = optim::State::int8,
     .bf16_weights = true,
     .activations = recompute::ActivationBits::int8},
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Model& model, const Way& way, double lr) {
  if (way.adafactor)
    return std::make_unique<optim::Adafactor>(
        model.parameters(),
        optim::AdafactorOptions{.lr = lr, .scale_parameter = false, .relative_step = false, .warmup_init = false});
  return std::make_unique<optim::AdamW>(
      model.parameters(),
      optim::AdamWOptions{.lr = lr, .state_dtype = way.state, .stochastic_rounding = way.bf16_weights});
}

Model make_model(const AccuracyTask& subject, const Way& way) {
  const Model model = subject.make();
  if (!way.bf16_weights) return model;
  const amp::Policy policy{
      .name = "bf16 weights", .dtype = at::kBFloat16, .autocast = true, .low_weights = true, .norms_fp32 = true};
  return amp::apply(model, policy).model;
}

double accuracy(const Model& model, const Texts& data) {
  const at::NoGradGuard no_grad;
  model.eval();
  int64_t right = 0;
  for (int64_t i = 0; i < data.labels.size(0); i += 256) {
    const int64_t n = std::min<int64_t>(256, data.labels.size(0) - i);
    right += model.forward(data.tokens.narrow(0, i, n)).argmax(1).eq(data.labels.narrow(0, i, n)).sum().item<int64_t>();
  }
  return 100.0 * static_cast<double>(right) / static_cast<double>(data.labels.size(0));
}

void train_epoch(const AccuracyTask& subject, const Model& model, const Way& way, torch::optim::Optimizer& optimizer,
                 int64_t epoch) {
  model.train();
  const int64_t samples = subject.train.labels.size(0), steps = samples / batch_size;
  const at::Tensor order = at::randperm(samples);
  for (int64_t step = 0; step < steps; ++step) {
    const double done = static_cast<double>(epoch * steps + step) / static_cast<double>(subject.epochs * steps);
    for (auto& group : optimizer.param_groups()) group.options().set_lr(rate_at(subject.lr, done));
    const at::Tensor chosen = order.narrow(0, step * batch_size, batch_size);
    const at::Tensor x = subject.train.tokens.index_select(0, chosen), y = subject.train.labels.index_select(0, chosen);
    at::Tensor loss;
    {
      std::optional<recompute::CompressGuard> compress;
      if (way.activations) compress.emplace(recompute::CompressOptions{.bits = *way.activations});
      loss = torch::cross_entropy_loss(model.forward(x), y);
    }
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
}

double train_to_the_end(const AccuracyTask& subject, const Way& way, uint64_t seed) {
  seed_everything(seed);
  const Model model = make_model(subject, way);
  const auto optimizer = make_optimizer(model, way, subject.lr);
  for (int64_t epoch = 0; epoch < subject.epochs; ++epoch) train_epoch(subject, model, way, *optimizer, epoch);
  return accuracy(model, subject.held_out);
}

/// One row a way; fp32's AdamW is the peer. Equal: the mean over three seeds is at most half a point below it.
void measure(const AccuracyTask& subject, int64_t seeds, Report& report) {
  const double margin = seeds > 1 ? 0.5 : 3;  // one seed says little
  double reference = 0;
  for (const Way& way : ways) {
    double mean = 0;
    Row row{.work = subject.title + ", " + way.name, .metric = "held-out accuracy", .unit = "%"};
    row.note = "seeds:";
    for (int64_t seed = 1; seed <= seeds; ++seed) {
      const double found = train_to_the_end(subject, way, static_cast<uint64_t>(seed));
      mean += found / static_cast<double>(seeds);
      char text[32];
      std::snprintf(text, sizeof text, " %.2f", found);
      row.note += text;
    }
    if (&way == &ways.front()) reference = mean;
    row.ours = mean;
    row.peers = {{ways.front().name, reference}};
    row.ratio_to_best_peer = mean / reference;
    row.equal = mean >= reference - margin;
    report.add(row);
  }
}

int run(const Options& options) {
  Report report("accuracy", options);
  const int64_t seeds = options.quick ? 1 : 3;
  const std::string& only = options.extra.at("only");
  TORCH_CHECK_VALUE(only.empty() || only == "digits" || only == "text",
                    "bench accuracy: expected --only digits or --only text.");
  if (only != "text") measure(digits_task(options, options.quick ? 2 : 6), seeds, report);
  if (only != "digits") measure(text_task(options, options.quick ? 2 : 3), seeds, report);
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Trains a ResNet on the digits and a small DistilBERT on sections of manual pages, and compares the held-out "
      "accuracy.\nThe configurations are AdamW with state in 32, 8 and 4 bits, Adafactor, activations in 8 and 4 bits, "
      "and bf16 weights.\nEach configuration is trained with three seeds.\n--pages: folder with the manual pages of "
      "the Debian packages manpages and manpages-dev. --only: digits or text.\n--quick: one seed and fewer epochs.",
      run, {{"pages", "/usr/share/man"}, {"only", ""}});
}
