// How much accuracy does quantization cost, and what does it save? A ResNet on the digits and a DistilBERT on manual pages are
// trained with several seeds and quantized with each method. A stack of large linears shows the bytes and the time of batch 1.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <numeric>

#include "bellows/compile/compile.h"
#include "bellows/core/seed.h"
#include "bellows/core/weight_bytes.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/optim/optimizers.h"
#include "bellows/quant.h"
#include "bench/accuracy/tasks.h"
#include "bench/quant/training_accuracy.h"
#include "bench/support/bench.h"

namespace bellows::bench {
namespace {

constexpr int64_t batch_size = 32, evaluation_batch = 256, calibration_batches = 10;
constexpr double most_static_drop = 0.5, most_int4_drop = 1, most_trained_drop = 0.2;

using Forward = std::function<at::Tensor(const at::Tensor&)>;

struct Subject : AccuracyTask {
  quant::Scheme int4;
};

struct Way {
  std::string name;
  std::function<quant::Options(const Subject&)> options;
  double most_drop = std::numeric_limits<double>::infinity();  ///< in points
};

Way int4_way(const std::string& name, quant::Rounding rounding, double most_drop) {
  return {name,
          [rounding](const Subject& subject) {
            return quant::Options{.method = quant::Method::weight_only, .weights = subject.int4, .rounding = rounding};
          },
          most_drop};
}

const std::vector<Way> ways = {
    {"static int8", [](const Subject&) { return quant::Options{}; }, most_static_drop},
    {"dynamic int8", [](const Subject&) { return quant::Options{.method = quant::Method::dynamic}; }},
    {"weight-only int8", [](const Subject&) { return quant::Options{.method = quant::Method::weight_only}; }},
    int4_way("weight-only int4, nearest", quant::Rounding::nearest, most_int4_drop),
    int4_way("weight-only int4, HQQ", quant::Rounding::hqq, most_int4_drop),
    int4_way("weight-only int4, GPTQ", quant::Rounding::gptq, most_int4_drop),
    int4_way("weight-only int4, AWQ", quant::Rounding::awq, most_int4_drop),
};

/// What the seeds found with one way.
struct Found {
  std::vector<double> accuracies, drops;  ///< in percent and in points
  double file_bytes = 0, original_file_bytes = 0;
  double layer_bytes = 0, original_layer_bytes = 0;  ///< of all layers that can be quantized, in memory
  double lowest_weight_sqnr = 0, lowest_result_sqnr = 0;
  std::string layers;  ///< the table of the first seed
};

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.) / static_cast<double>(values.size());
}

/// Standard deviation over the seeds; 0 for one seed.
double spread_of(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  double squares = 0;
  for (const double value : values) squares += (value - mean_of(values)) * (value - mean_of(values));
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

Model trained(const Subject& subject, uint64_t seed) {
  seed_everything(seed);
  const Model model = subject.make();
  optim::AdamW optimizer(model.parameters(), optim::AdamWOptions{.lr = subject.lr});
  model.train();
  const int64_t samples = subject.train.labels.size(0), steps = samples / batch_size, all = steps * subject.epochs;
  for (int64_t step = 0; step < all; ++step) {
    const double done = static_cast<double>(step) / static_cast<double>(all);
    for (auto& group : optimizer.param_groups()) group.options().set_lr(rate_at(subject.lr, done));
    const at::Tensor chosen = at::randint(samples, {batch_size}, at::kLong);
    optimizer.zero_grad();
    torch::cross_entropy_loss(model.forward(subject.train.tokens.index_select(0, chosen)),
                              subject.train.labels.index_select(0, chosen))
        .backward();
    optimizer.step();
  }
  model.eval();
  return model;
}

Forward compiled(const Model& model) {
  return compile([model](const at::Tensor& x) { return model.forward(x); }, {.frozen = model});
}

/// Accuracy in percent. All batches have the same size: the last one overlaps with the one before it.
double accuracy(const Forward& forward, const Texts& data) {
  const torch::NoGradGuard no_gradients;
  const int64_t samples = data.labels.size(0), size = std::min(evaluation_batch, samples);
  at::Tensor right = at::zeros({samples}, at::kBool);
  for (int64_t begin = 0; begin < samples; begin += size) {
    const int64_t first = std::min(begin, samples - size);
    const at::Tensor found = forward(data.tokens.narrow(0, first, size)).argmax(1);
    right.narrow(0, first, size).copy_(found.eq(data.labels.narrow(0, first, size)));
  }
  return 100 * right.to(at::kDouble).mean().item<double>();
}

std::vector<std::vector<at::Tensor>> calibration_of(const Subject& subject) {
  torch::manual_seed(1);
  const at::Tensor order = at::randperm(subject.train.labels.size(0));
  std::vector<std::vector<at::Tensor>> batches;
  for (int64_t i = 0; i < calibration_batches; ++i)
    batches.push_back({subject.train.tokens.index_select(0, order.narrow(0, i * batch_size, batch_size))});
  return batches;
}

double file_size(const std::function<void(const std::string& path)>& save) {
  const std::string path = std::filesystem::temp_directory_path() / "bench-quant-accuracy.safetensors";
  save(path);
  const auto size = static_cast<double>(std::filesystem::file_size(path));
  std::filesystem::remove(path);
  return size;
}

void add_report(const quant::Report& report, Found& found) {
  found.layer_bytes = found.original_layer_bytes = 0;
  double weight = std::numeric_limits<double>::infinity(), result = weight;
  for (const quant::LayerReport& layer : report.layers) {
    found.layer_bytes += static_cast<double>(layer.bytes_after);
    found.original_layer_bytes += static_cast<double>(layer.bytes_before);
    weight = std::min(weight, layer.weight_sqnr);
    result = std::min(result, layer.result_sqnr);
  }
  if (!found.layers.empty()) return;
  found.layers = report.to_text();
  found.lowest_weight_sqnr = weight;
  found.lowest_result_sqnr = result;
}

void quantize_in_all_ways(const Subject& subject, const Model& model, Found& original, std::vector<Found>& found) {
  found.resize(ways.size());
  const double before = accuracy(compiled(model), subject.held_out);
  original.accuracies.push_back(before);
  const double size = file_size([&](const std::string& path) { io::save_safetensors(path, model.state_dict()); });
  const auto calibration = calibration_of(subject);
  for (size_t i = 0; i < ways.size(); ++i) {
    const quant::Quantized made = quant::quantize(model, ways[i].options(subject), calibration);
    const double after = accuracy(compiled(made.model), subject.held_out);
    found[i].accuracies.push_back(after);
    found[i].drops.push_back(before - after);
    found[i].original_file_bytes = size;
    found[i].file_bytes = file_size([&](const std::string& path) { quant::save_quantized(path, made); });
    add_report(made.report, found[i]);
  }
}

std::string list_of(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) {
    char one[32];
    std::snprintf(one, sizeof one, " %.2f", value);
    text += one;
  }
  return text;
}

std::string note_of(const Found& found) {
  char text[320];
  std::snprintf(text, sizeof text,
                "%+.2f points (standard deviation %.2f); file %.1f %% of fp32; layers: %.0f of %.0f bytes moved per "
                "inference, %.1f %%; lowest SQNR: weight %.1f dB, result %.1f dB; seeds:",
                -mean_of(found.drops), spread_of(found.drops), 100 * found.file_bytes / found.original_file_bytes,
                found.layer_bytes, found.original_layer_bytes, 100 * found.layer_bytes / found.original_layer_bytes,
                found.lowest_weight_sqnr, found.lowest_result_sqnr);
  return text + list_of(found.accuracies);
}

void measure(const Subject& subject, int64_t seeds, bool with_layers, Report& report) {
  Found original;
  std::vector<Found> found;
  for (int64_t seed = 1; seed <= seeds; ++seed)
    quantize_in_all_ways(subject, trained(subject, static_cast<uint64_t>(seed)), original, found);
  Row first{.work = subject.title + ", fp32", .metric = "held-out accuracy", .unit = "%"};
  first.ours = mean_of(original.accuracies);
  first.equal = true;
  char spread[64];
  std::snprintf(spread, sizeof spread, "standard deviation %.2f points; seeds:", spread_of(original.accuracies));
  first.note = spread + list_of(original.accuracies);
  report.add(first);
  for (size_t i = 0; i < ways.size(); ++i) {
    Row row{.work = subject.title + ", " + ways[i].name, .metric = "held-out accuracy", .unit = "%"};
    row.ours = mean_of(found[i].accuracies);
    row.peers = {{"fp32", first.ours}};
    row.ratio_to_best_peer = row.ours / first.ours;
    const double tolerance = seeds > 1 ? 0 : 2;  // one seed says little
    row.equal = mean_of(found[i].drops) <= ways[i].most_drop + tolerance;
    row.note = note_of(found[i]);
    report.add(row);
    if (with_layers) std::printf("%s\n", found[i].layers.c_str());
  }
}

/// Compares runs of the trainer with the same seed and the same number of steps.
void measure_training(const Options& options, int64_t seeds, Report& report) {
  std::vector<double> fp32, calibrated, trained, drops, calibrated_drops;
  for (int64_t seed = 1; seed <= seeds; ++seed) {
    const TrainingAccuracy found = accuracy_of_training(options.data, options.quick ? 2 : 10, seed);
    fp32.push_back(found.fp32);
    calibrated.push_back(found.calibrated);
    trained.push_back(found.trained);
    drops.push_back(found.fp32 - found.trained);
    calibrated_drops.push_back(found.fp32 - found.calibrated);
  }
  Row row{
      .work = "ResNet on the digits, int8, quantization-aware training", .metric = "held-out accuracy", .unit = "%"};
  row.ours = mean_of(trained);
  row.peers = {{"fp32", mean_of(fp32)}, {"static int8", mean_of(calibrated)}};
  row.ratio_to_best_peer = row.ours / mean_of(fp32);
  row.equal = mean_of(drops) <= most_trained_drop + (seeds > 1 ? 0 : 2);
  char changes[200];
  std::snprintf(changes, sizeof changes,
                "%+.2f points (standard deviation %.2f); static int8 of the fp32 runs %+.2f points (%.2f); seeds:",
                -mean_of(drops), spread_of(drops), -mean_of(calibrated_drops), spread_of(calibrated_drops));
  row.note = changes + list_of(trained) + "; fp32:" + list_of(fp32) + "; static int8:" + list_of(calibrated);
  report.add(row);
}

/// Large linears with batch 1: their time is that of reading the weights.
void measure_stack(const Options& options, Report& report) {
  constexpr int64_t features = 4096;
  const int64_t depth = options.quick ? 8 : std::stoll(options.extra.at("depth"));
  const torch::NoGradGuard no_gradients;
  torch::manual_seed(1);
  torch::nn::Sequential stack;
  for (int64_t i = 0; i < depth; ++i)
    stack->push_back(torch::nn::Linear(torch::nn::LinearOptions(features, features).bias(false)));
  const Model model = Model::of(stack);
  model.eval();
  const at::Tensor x = at::randn({1, features});
  const std::vector<std::vector<at::Tensor>> inputs{{x}};
  const auto with_bits = [&](const quant::Scheme& scheme) {
    return quant::quantize(model, {.method = quant::Method::weight_only, .weights = scheme}, inputs);
  };
  const quant::Quantized int8 = with_bits(quant::weight_scheme(8)), int4 = with_bits(quant::group_scheme(4, 128));
  const std::vector<std::pair<std::string, Model>> forms = {
      {"int8", int8.model}, {"int4", int4.model}, {"fp32", model}};
  std::vector<Contestant> sides;
  sides.reserve(forms.size());
  for (const auto& [name, form] : forms)
    sides.push_back(timed_contestant(name, [forward = compiled(form), x] { forward(x); }));
  const Comparison all = compare(sides, {.window_s = 0.5, .windows = options.quick ? 3 : 11, .warmup = 2});
  const Side& fp32 = all.sides.back();
  const auto original = static_cast<double>(weight_bytes(model));
  for (size_t i = 0; i + 1 < forms.size(); ++i) {
    const Comparison pair{.sides = {all.sides[i], fp32}, .units = all.units};
    Row row = time_row(std::to_string(depth) + " linears of 4096 features, batch 1, " + forms[i].first, "time per call",
                       "ms", pair, true);
    const auto bytes = static_cast<double>(weight_bytes(forms[i].second));
    char text[200];
    std::snprintf(text, sizeof text,
                  "%.0f bytes of weights instead of %.0f: %.2f times less to move; %.1f GB/s, fp32 %.1f GB/s", bytes,
                  original, original / bytes, bytes / all.sides[i].seconds() / 1e9, original / fp32.seconds() / 1e9);
    row.note = text;
    report.add(row);
  }
}

int run(const Options& options) {
  Report report("quant_accuracy", options);
  const int64_t seeds = options.quick ? 1 : std::stoll(options.extra.at("seeds"));
  const std::string& only = options.extra.at("only");
  const bool with_layers = options.extra.at("layers") == "yes";
  TORCH_CHECK_VALUE(only.empty() || only == "digits" || only == "training" || only == "text" || only == "stack",
                    "bench quant_accuracy: expected --only digits, training, text or stack, got --only ", only, ".");
  const auto chosen = [&](const std::string& part) {
    return (only.empty() || only == part) && report.has_time_for(part);
  };
  if (chosen("digits"))
    measure({digits_task(options, options.quick ? 2 : 6), quant::weight_scheme(4)}, seeds, with_layers, report);
  if (chosen("training")) measure_training(options, seeds, report);
  if (chosen("stack")) measure_stack(options, report);
  if (chosen("text"))
    measure({text_task(options, options.quick ? 1 : 3), quant::group_scheme(4, 64)}, seeds, with_layers, report);
  return report.finish();
}

}  // namespace
}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(argc, argv,
                    "Trains a ResNet on the digits and a small DistilBERT on sections of manual pages, and quantizes "
                    "them with each method.\n"
                    "Compares the held-out accuracy, the size of the file and the signal-to-noise ratio (SQNR) "
                    "with fp32. Another run trains with quantization. A stack of\n"
                    "large linears shows the bytes and the time of a forward pass of one row.\n--seeds: number of "
                    "seeds. --only: digits, training, "
                    "text or stack. --layers yes: prints the SQNR of each layer.\n--pages: folder with the manual "
                    "pages of the Debian "
                    "packages manpages and manpages-dev.\n--depth: number of linears of the stack.\n--quick: one seed "
                    "and fewer epochs.",
                    run, {{"seeds", "3"}, {"only", ""}, {"layers", ""}, {"pages", "/usr/share/man"}, {"depth", "32"}});
}
