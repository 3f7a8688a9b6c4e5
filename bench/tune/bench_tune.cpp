// How much of a grid's time does a search need? All 64 configurations of a grid train once, and their accuracies and times are
// recorded per epoch. The searches then replay the records, so that each seed sees the same runs.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "bellows/train/trainer.h"
#include "bellows/tune/study.h"
#include "bench/support/bench.h"

namespace bellows::bench {

namespace {

using tune::Assignment;
using tune::Parameter;

constexpr std::array<double, 8> rates = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2};
constexpr std::array<int64_t, 4> batches = {16, 32, 64, 128};
constexpr std::array<const char*, 2> optimizers = {"sgd", "adamw"};
constexpr int64_t rounds_of_constraint = 40;  ///< trials of a search with a constraint
constexpr double most_excess = 1.05, most_grid_share = 1.0 / 3;

/// A configuration after each epoch.
struct Curve {
  std::vector<double> accuracies, seconds;  ///< seconds of processor time for the epoch

  double time_until(size_t epochs) const {
    double sum = 0;
    for (size_t i = 0; i < epochs; ++i) sum += seconds[i];
    return sum;
  }
  /// Number of epochs until the target, or all epochs.
  size_t epochs_to(double target) const {
    const auto reached = std::ranges::find_if(accuracies, [&](double accuracy) { return accuracy >= target; });
    return std::min<size_t>(static_cast<size_t>(reached - accuracies.begin()) + 1, accuracies.size());
  }
  bool reaches(double target) const { return *std::ranges::max_element(accuracies) >= target; }
};

Parameter index(std::string name, size_t count) {
  return {.name = std::move(name),
          .kind = Parameter::Kind::integer,
          .low = 0,
          .high = static_cast<double>(count) - 1,
          .step = 1};
}

/// The grid. Rates and batch sizes are ordered, so they are integers.
tune::SearchSpace grid_space() {
  return {{index("lr", rates.size()),
           index("batch_size", batches.size()),
           {.name = "optimizer",
            .kind = Parameter::Kind::choice,
            .high = 1,
            .choices = {optimizers.begin(), optimizers.end()}}}};
}

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Trains one configuration. Processor time does not include that of other programs on the machine.
Curve train(const Options& options, int64_t epochs, const Assignment& values) {
  train::Recipe recipe;
  recipe.data = options.data;
  recipe.model = options.extra.at("model");
  recipe.lr = rates.at(static_cast<size_t>(values[0]));
  recipe.batch_size = batches.at(static_cast<size_t>(values[1]));
  recipe.optimizer = optimizers.at(static_cast<size_t>(values[2]));
  recipe.epochs = epochs;
  recipe.lr_schedule = "constant";
  recipe.num_workers = 0;
  recipe.on_nan = "skip";
  const double begin = processor_seconds();
  const train::FitResult result = train::Trainer(recipe).fit();
  double wall = 0;
  for (const train::EpochRecord& epoch : result.history) wall += epoch.train_seconds + epoch.eval_seconds;
  const double scale = (processor_seconds() - begin) / wall;
  Curve curve;
  for (const train::EpochRecord& epoch : result.history) {
    curve.accuracies.push_back(std::isnan(epoch.eval_accuracy) ? 0 : epoch.eval_accuracy);
    curve.seconds.push_back(scale * epoch.train_seconds);
  }
  return curve;
}

class Records {
 public:
  Records(const Options& options, int64_t epochs) : space_(grid_space()) {
    for (int64_t i = 0; i < space_.grid_count(); ++i) {
      curves_.push_back(train(options, epochs, space_.grid_point(i)));
      std::fprintf(stderr, "\r%lld of %lld configurations", static_cast<long long>(i + 1),
                   static_cast<long long>(space_.grid_count()));
    }
    std::fprintf(stderr, "\n");
  }

  const tune::SearchSpace& space() const { return space_; }
  const std::vector<Curve>& all() const { return curves_; }
  const Curve& of(const Assignment& values) const {
    const double place =
        (values[0] * static_cast<double>(batches.size()) + values[1]) * static_cast<double>(optimizers.size()) +
        values[2];
    return curves_.at(static_cast<size_t>(place));
  }

 private:
  const tune::SearchSpace space_;
  std::vector<Curve> curves_;
};

struct Found {
  double best = HUGE_VAL;  ///< time to the target of the best trial
  double spent = 0;        ///< time of all trials
  int64_t trials = 0;
};

/// TPE with successive halving, until the time is spent.
Found search(const Records& records, double target, double budget, uint64_t seed) {
  tune::Study study({.space = records.space(),
                     .objective = "time_to_target",
                     .maximize = false,
                     .constraints = {{.metric = "accuracy", .at_least = target}},
                     .halving = tune::HalvingOptions{},
                     .seed = seed},
                    "", false);
  Found found;
  while (const auto trial = study.ask()) {
    const Curve& curve = records.of(trial->values);
    const size_t epochs = curve.epochs_to(target);
    bool pruned = false;
    size_t trained = 0;
    while (trained < epochs && !pruned) {
      const double accuracy = curve.accuracies[trained++];
      const tune::TrialReport report{
          .step = static_cast<int64_t>(trained), .value = -accuracy, .spent = curve.time_until(trained)};
      pruned = study.report(trial->number, report) && trained < epochs;
    }
    const double seconds = curve.time_until(trained);
    if (found.spent + seconds > budget) break;  // the trial does not end in time
    found.spent += seconds, ++found.trials;
    tune::TrialResult result{.pruned = pruned};  // a pruned trial reports no metrics
    if (!pruned) result.metrics = {{"accuracy", curve.accuracies[trained - 1]}, {"time_to_target", seconds}};
    study.tell(trial->number, result);
    if (!pruned && curve.reaches(target)) found.best = std::min(found.best, seconds);
  }
  return found;
}

/// One row per seed, and the number of seeds that reach the goal.
void report_searches(const Records& records, double target, int64_t seeds, Report& report) {
  double grid = 0, best = HUGE_VAL;
  for (const Curve& curve : records.all()) {
    const double seconds = curve.time_until(curve.epochs_to(target));
    grid += seconds;
    if (curve.reaches(target)) best = std::min(best, seconds);
  }
  int64_t reached = 0;
  for (int64_t seed = 1; seed <= seeds; ++seed) {
    const Found found = search(records, target, grid * most_grid_share, static_cast<uint64_t>(seed));
    const bool good = found.best <= most_excess * best;
    reached += good;
    char note[160];
    std::snprintf(note, sizeof note,
                  "%.1f %% above the grid's best; %lld trials in %.0f %% of the grid's time (%.1f s)",
                  100 * (found.best / best - 1), static_cast<long long>(found.trials), 100 * found.spent / grid, grid);
    report.add({.work = "64 configurations, seed " + std::to_string(seed),
                .metric = "time to " + std::to_string(target).substr(0, 5) + " (limit: best of the grid)",
                .unit = "s",
                .ours = found.best,
                .limit = best,
                .equal = seeds < 3 || seed < seeds || 3 * reached >= 2 * seeds,  // two of three seeds must reach it
                .note = note});
  }
}

/// A search for the shortest training, with a constraint on the accuracy.
void report_constraint(const Records& records, int64_t epochs, double target, int64_t seeds, Report& report) {
  tune::SearchSpace space = records.space();
  space.parameters.push_back(index("epochs", static_cast<size_t>(epochs)));
  int64_t satisfying = 0;
  for (const Curve& curve : records.all())
    satisfying += std::ranges::count_if(curve.accuracies, [&](double accuracy) { return accuracy >= target; });
  for (int64_t seed = 1; seed <= seeds; ++seed) {
    tune::Study study({.space = space,
                       .objective = "train_seconds",
                       .maximize = false,
                       .constraints = {{.metric = "accuracy", .at_least = target}},
                       .seed = static_cast<uint64_t>(seed)},
                      "", false);
    for (int64_t i = 0; i < rounds_of_constraint; ++i) {
      const auto trial = study.ask();
      const Curve& curve = records.of(trial->values);
      const auto last = static_cast<size_t>(trial->values[3]);
      study.tell(trial->number,
                 {.metrics = {{"accuracy", curve.accuracies[last]}, {"train_seconds", curve.time_until(last + 1)}}});
    }
    const auto violating = std::ranges::count_if(study.trials(), [](const auto& trial) { return trial.violation > 0; });
    const tune::Trial* best = tune::best_trial(study.trials());
    char note[160];
    std::snprintf(note, sizeof note, "best: %.3f s, accuracy %.4f; %.0f %% of the space satisfy the constraint",
                  best ? best->objective : NAN, best ? best->metrics.at("accuracy") : NAN,
                  100 * static_cast<double>(satisfying) / static_cast<double>(64 * epochs));
    report.add({.work = "accuracy at least " + std::to_string(target).substr(0, 5) + ", seed " + std::to_string(seed),
                .metric = "trials that violate the constraint (limit: half)",
                .unit = "trials",
                .ours = static_cast<double>(violating),
                .limit = static_cast<double>(rounds_of_constraint) / 2,
                .equal = best && 2 * violating < rounds_of_constraint,
                .note = note});
  }
}

int run(const Options& options) {
  Report report("tune", options);
  const int64_t epochs = options.quick ? 6 : std::stoll(options.extra.at("epochs")),
                seeds = std::stoll(options.extra.at("seeds"));
  const double target = options.quick ? 0.9 : std::stod(options.extra.at("target"));
  const Records records(options, epochs);
  report_searches(records, target, seeds, report);
  report_constraint(records, epochs, target, seeds, report);
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Trains all 64 configurations of a grid (learning rate, batch size, optimizer) on the digits, and replays them "
      "for searches with TPE and successive halving.\nThe first rows compare the best configuration that a search "
      "finds in a third of the grid's time with the best one of the grid. The other rows count\nthe trials that "
      "violate "
      "a constraint. All times are processor times; run it with OMP_NUM_THREADS=1. --quick: fewer epochs.",
      run, {{"model", "mlp"}, {"epochs", "9"}, {"target", "0.95"}, {"seeds", "3"}});
}
