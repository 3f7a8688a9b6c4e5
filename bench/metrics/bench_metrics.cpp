// Metrics in every step of a training loop: ours, torchmetrics and scikit-learn.
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <memory>

#include "bellows/metrics.h"
#include "bellows/models/formula_weights.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {

namespace {

constexpr int64_t batch = 64, features = 64, width = 256, classes = 10, steps = 2000, batches = 16;
constexpr double learning_rate = 0.05;

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

metrics::MetricCollection five_metrics() {
  const metrics::ClassificationOptions macro = {.num_classes = classes, .average = metrics::Average::macro};
  return {{"accuracy", metrics::Accuracy({.num_classes = classes})},
          {"precision", metrics::Precision(macro)},
          {"recall", metrics::Recall(macro)},
          {"f1", metrics::F1Score(macro)},
          {"iou", metrics::JaccardIndex(macro)}};
}

metrics::MetricCollection binned_auroc() {
  return {{"auroc", metrics::AUROC({.task = metrics::Task::multiclass,
                                    .num_classes = classes,
                                    .thresholds = metrics::even_thresholds(100),
                                    .scores = metrics::Scores::logits})}};
}

/// Results on the host: what a progress line needs.
std::vector<double> read(const metrics::MetricCollection& collection) {
  std::vector<at::Tensor> results;
  for (const auto& [name, value] : collection.compute()) results.push_back(value);
  const at::Tensor all = at::stack(results);
  return {all.const_data_ptr<double>(), all.const_data_ptr<double>() + all.numel()};
}

/// Seconds a step that the metrics took.
struct Growth {
  double first, last;
};

class OurLoop {
 public:
  OurLoop()
      : net_(torch::nn::Linear(features, width), torch::nn::ReLU(), torch::nn::Linear(width, width), torch::nn::ReLU(),
             torch::nn::Linear(width, classes)),
        optimizer_(net_->parameters(), torch::optim::SGDOptions(learning_rate)) {
    models::set_formula_weights(named_parameters());
    for (int64_t i = 0; i < batches; ++i) {
      const std::string number = std::to_string(i);
      inputs_.push_back(models::formula_uniform("input" + number, {batch, features}).to(at::kFloat));
      labels_.push_back(models::formula_labels("labels" + number, batch, classes));
    }
  }

  /// The logits of a training step.
  at::Tensor step() {
    const auto i = static_cast<size_t>(step_++ % batches);
    optimizer_.zero_grad();
    const at::Tensor logits = net_->forward(inputs_[i]);
    torch::cross_entropy_loss(logits, labels_[i]).backward();
    optimizer_.step();
    return logits.detach();
  }
  const at::Tensor& labels() const { return labels_[static_cast<size_t>((step_ - 1) % batches)]; }

  double plain(int64_t n) {
    const auto start = Clock::now();
    for (int64_t i = 0; i < n; ++i) step();
    return seconds_since(start);
  }

  /// The part of n steps that the updates took.
  double updates(metrics::MetricCollection& collection, int64_t n) {
    double result = 0;
    for (int64_t i = 0; i < n; ++i) result += update_after_step(collection);
    return result;
  }

  /// All steps; results are read in the first and in the last `window`.
  Growth grow(metrics::MetricCollection collection, int64_t window) {
    Growth result{0, 0};
    for (int64_t i = 0; i < steps; ++i) {
      double seconds = update_after_step(collection);
      const bool first = i < window, last = i >= steps - window;
      if (!first && !last) continue;
      const auto start = Clock::now();
      read(collection);
      seconds += seconds_since(start);
      (first ? result.first : result.last) += seconds / static_cast<double>(window);
    }
    return result;
  }

 private:
  double update_after_step(metrics::MetricCollection& collection) {
    const at::Tensor logits = step();
    const auto start = Clock::now();
    collection.update(logits, labels());
    return seconds_since(start);
  }
  NamedTensors named_parameters() {
    NamedTensors result;
    for (const auto& p : net_->named_parameters()) result.emplace_back(p.key(), p.value());
    return result;
  }

  torch::nn::Sequential net_;
  torch::optim::SGD optimizer_;
  std::vector<at::Tensor> inputs_, labels_;
  int64_t step_ = 0;
};

/// What `collection` makes of batches that are the same in both languages.
std::vector<double> final_values(metrics::MetricCollection collection, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const std::string number = std::to_string(i);
    collection.update(models::formula_uniform("logits" + number, {batch, classes}).mul(8).to(at::kFloat),
                      models::formula_labels("labels" + number, batch, classes));
  }
  return read(collection);
}

bool close(const std::vector<double>& a, const std::vector<double>& b) {
  bool result = a.size() == b.size();
  for (size_t i = 0; result && i < a.size(); ++i) result = std::abs(a[i] - b[i]) <= 1e-6;
  return result;
}

/// One set of metrics, and how the peers' script calls what does the same.
struct Work {
  std::string name;
  metrics::MetricCollection ours;
  std::vector<std::string> peers, growing_peers;
};

std::vector<Work> all_work() {
  return {{"accuracy, macro precision, recall, F1, IoU",
           five_metrics(),
           {"torchmetrics", "torchmetrics_unchecked"},
           {"torchmetrics", "torchmetrics_unchecked", "sklearn"}},
          {"macro AUROC of 10 classes, 100 thresholds",
           binned_auroc(),
           {"torchmetrics_auroc", "torchmetrics_auroc_unchecked"},
           {"torchmetrics_auroc", "torchmetrics_auroc_unchecked"}}};
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    if (options.peer_python.empty()) return;
    peer_ = std::make_unique<PeerProcess>(std::vector<std::string>{
        options.peer_python, source_dir() + "/bench/peers/metrics.py", "--batch", std::to_string(batch), "--features",
        std::to_string(features), "--width", std::to_string(width), "--classes", std::to_string(classes), "--steps",
        std::to_string(steps), "--batches", std::to_string(batches), "--lr", std::to_string(learning_rate)});
  }

  int run() {
    Report report("metrics", options_);
    report.add(plain_row());
    for (const Work& work : all_work()) {
      report.add(update_row(work));
      for (Row& row : growth_rows(work)) report.add(std::move(row));
    }
    return report.finish();
  }

 private:
  Plan plan(int64_t units) const {
    return {.units = units, .windows = options_.quick ? 4 : 15, .warmup = 1, .budget_s = options_.quick ? 2 : 1e9};
  }

  Row plain_row() {
    std::vector<Contestant> sides = {{"ours", [this](int64_t n) { return loop_.plain(n); }}};
    if (peer_) sides.push_back(peer_->as_contestant("Python"));
    return time_row("MLP 64-256-256-10, batch 64: training step", "no metrics", "us",
                    compare(sides, plan(options_.quick ? 150 : 1000)), true);
  }

  /// Whether our results and those of all peers agree; scikit-learn's exact AUROC is not among them.
  bool equal(const Work& work) {
    if (!peer_) return true;
    const std::vector<double> ours = final_values(work.ours, 50);
    bool result = true;
    for (const std::string& name : work.growing_peers)
      result = close(peer_->ask_numbers("final " + name + " 50"), ours) && result;
    return result;
  }

  Row update_row(const Work& work) {
    metrics::MetricCollection collection = work.ours;
    std::vector<Contestant> sides = {{"ours", [&](int64_t n) { return loop_.updates(collection, n); }}};
    for (const std::string& name : peer_ ? work.peers : std::vector<std::string>{}) {
      sides.push_back({name, [this, name](int64_t n) {
                         return peer_->ask_numbers("updates " + name + " " + std::to_string(n)).at(0);
                       }});
    }
    Row row =
        time_row(work.name, "update, per step", "us", compare(sides, plan(options_.quick ? 100 : 500)), equal(work));
    row.limit = 1e6 * argmax_seconds();
    row.note = "limit: only the search for the largest logit";
    return row;
  }

  std::vector<Row> growth_rows(const Work& work) {
    const int64_t window = options_.quick ? 20 : 200;
    std::vector<Side> first = {{"ours", {}}}, last = first;
    for (const std::string& name : peer_ ? work.growing_peers : std::vector<std::string>{}) {
      first.push_back({name, {}}), last.push_back({name, {}});
    }
    for (int round = 0; round < (options_.quick ? 2 : 5); ++round) {
      for (size_t turn = 0; turn < first.size(); ++turn) {
        const size_t side = (turn + static_cast<size_t>(round)) % first.size();
        const Growth growth = side == 0 ? loop_.grow(work.ours, window) : peer_growth(first[side].name, window);
        first[side].windows.push_back(growth.first);
        last[side].windows.push_back(growth.last);
      }
    }
    const bool same = equal(work);
    const std::string end = std::to_string(window) + " of " + std::to_string(steps) + " steps";
    return {time_row(work.name, "update and read, first " + end, "us", {first, window}, same),
            time_row(work.name, "update and read, last " + end, "us", {last, window}, same)};
  }

  Growth peer_growth(const std::string& name, int64_t window) {
    const auto answer = peer_->ask_numbers("grow " + name + " " + std::to_string(window), 600);
    return {answer.at(0), answer.at(1)};
  }

  double argmax_seconds() const {
    const at::Tensor logits = torch::rand({batch, classes});
    const auto start = Clock::now();
    for (int i = 0; i < 2000; ++i) at::argmax(logits, 1);
    return seconds_since(start) / 2000;
  }

  Options options_;
  OurLoop loop_;
  std::unique_ptr<PeerProcess> peer_;
};

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(argc, argv,
                    "Updates metrics in every step of a training loop (a small MLP, 2,000 steps). Times an update, and "
                    "an update whose results\nare read, in the first and in the last steps. Compares Bellows with "
                    "torchmetrics, with and without input checks, and with\nscikit-learn on all accumulated values. "
                    "Before that, the results on equal batches are compared.",
                    [](const Options& options) { return Bench(options).run(); });
}
