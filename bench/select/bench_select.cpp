// Do the samples that are chosen teach more than samples at random? Real trainings on the digits, from scratch each time.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "bellows/core/seed.h"
#include "bellows/data/select/sample_stats.h"
#include "bellows/data/select/subset.h"
#include "bellows/models/mlp.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/data/selection.h"
#include "bellows/train/step/train_loop.h"
#include "bench/support/bench.h"

namespace bellows::bench {

namespace {

using train::Recipe;

constexpr double kKept = 0.6;                               // of the samples
constexpr int64_t kFirst = 100, kRound = 50, kRounds = 10;  // labels in active learning

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::string listed(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) {
    char word[32];
    std::snprintf(word, sizeof word, " %.2f", value);
    text += word;
  }
  return text;
}

Recipe base_recipe(const Options& options, const std::string& model, int64_t epochs, int64_t seed) {
  Recipe recipe;
  recipe.model = model;
  recipe.data = options.data;
  recipe.epochs = epochs;
  recipe.lr = 0.05;
  recipe.lr_schedule = "cosine";
  recipe.seed = seed;
  recipe.channels_last = true;
  recipe.train_metrics = "none";
  return recipe;
}

/// Held-out accuracy after the last epoch, in percent.
double train_to_the_end(train::TrainLoop& loop) {
  loop.run_steps(loop.job().recipe.epochs * loop.steps_per_epoch());
  loop.take_losses();
  return 100 * loop.evaluate().accuracy;
}

double accuracy_with(const Recipe& recipe, const std::vector<int64_t>& ids) {
  train::Job job = train::make_job(recipe);
  job.train = job.train.subset(ids);
  train::TrainLoop loop(std::move(job));
  return train_to_the_end(loop);
}

/// What one training on everything notes of each sample.
void note_samples(Recipe recipe, std::map<std::string, std::vector<double>>& hardness) {
  recipe.sample_stats = true;
  train::TrainLoop loop(train::make_job(recipe));
  train_to_the_end(loop);
  for (const char* rule : {"forgetting", "el2n", "loss", "margin"})
    hardness[rule] = loop.sample_stats()->difficulty(data::parse_difficulty(rule));
  hardness["random"] = std::vector<double>(hardness["el2n"].size());
}

/// One row a rule. The statistics come from another training, with a seed of its own.
void measure_subsets(const std::string& model, int64_t epochs, const Options& options, Report& report) {
  const int64_t seeds = options.quick ? 1 : 3;
  std::map<std::string, std::vector<double>> accuracies;
  for (int64_t seed = 1; seed <= seeds; ++seed) {
    std::map<std::string, std::vector<double>> hardness;
    note_samples(base_recipe(options, model, epochs, seed + 100), hardness);
    const Recipe recipe = base_recipe(options, model, epochs, seed);
    const auto samples = static_cast<int64_t>(hardness["random"].size());
    std::vector<int64_t> all(static_cast<size_t>(samples));
    std::iota(all.begin(), all.end(), int64_t{0});
    accuracies["all"].push_back(accuracy_with(recipe, all));
    for (const auto& [rule, values] : hardness) {
      const auto count = static_cast<int64_t>(std::llround(kKept * static_cast<double>(samples)));
      accuracies[rule].push_back(accuracy_with(recipe, data::greatest(values, count, static_cast<uint64_t>(seed))));
    }
  }
  const double whole = mean_of(accuracies["all"]), by_chance = mean_of(accuracies["random"]);
  for (const auto& [rule, of_rule] : accuracies) {
    const double accuracy = mean_of(of_rule);
    Row row{.work = model + ", " + (rule == "all" ? "all samples" : "60 % by " + rule),
            .metric = "held-out accuracy, mean",
            .unit = "%",
            .ours = accuracy,
            .peers = {{"all samples", whole}, {"60 % at random", by_chance}},
            .ratio_to_best_peer = accuracy / whole,
            .equal = rule == "random" || rule == "all" || accuracy >= whole - 0.5,
            .note = "seeds:" + listed(of_rule)};
    row.best_peer = "all samples";
    report.add(row);
  }
}

/// A small network with dropout, so that BALD has something to ask.
train::TrainLoop fresh_learner(const Options& options, const std::vector<int64_t>& labelled, int64_t seed) {
  // About as many steps however many labels there are.
  const auto steps_per_epoch = (static_cast<int64_t>(labelled.size()) + 31) / 32;
  Recipe recipe = base_recipe(options, "mlp", std::max<int64_t>(1, 600 / steps_per_epoch), seed);
  train::Job job = train::make_job(recipe);
  job.model = models::mlp({.dropout = 0.25});
  job.optimizers = {train::make_optimizer(recipe, job.model)};
  job.loss = train::cross_entropy_loss(job.model);
  job.train = job.train.subset(labelled);
  return train::TrainLoop(std::move(job));
}

/// Accuracy by round of one strategy; the first labels are the same for all.
std::vector<double> active_curve(const Options& options, const data::Dataset& pool, const std::string& strategy,
                                 int64_t rounds, int64_t seed) {
  std::vector<int64_t> labelled = data::random_subset(pool.size(), kFirst, static_cast<uint64_t>(seed));
  std::vector<double> curve;
  for (int64_t round = 0; round <= rounds; ++round) {
    train::TrainLoop loop = fresh_learner(options, labelled, seed);
    curve.push_back(train_to_the_end(loop));
    if (round == rounds) break;
    const auto more =
        train::choose_to_label(loop.job().model, pool, labelled,
                               {.by = strategy,
                                .count = kRound,
                                .passes = 20,
                                .seed = mix_seed(static_cast<uint64_t>(seed), static_cast<uint64_t>(round))});
    labelled.insert(labelled.end(), more.begin(), more.end());
    std::sort(labelled.begin(), labelled.end());
  }
  return curve;
}

/// Labels at which `curve` first reaches `accuracy`, between rounds on a straight line; NaN: never.
double labels_to_reach(const std::vector<double>& curve, double accuracy) {
  for (size_t i = 0; i < curve.size(); ++i) {
    if (curve[i] < accuracy) continue;
    const double part = i == 0 ? 0 : (accuracy - curve[i - 1]) / (curve[i] - curve[i - 1]) - 1;
    return static_cast<double>(kFirst) + static_cast<double>(kRound) * (static_cast<double>(i) + part);
  }
  return std::nan("");
}

void measure_active(const Options& options, Report& report) {
  const int64_t seeds = options.quick ? 1 : 3, rounds = options.quick ? 4 : kRounds;
  const data::Dataset pool = train::open_train_data(base_recipe(options, "mlp", 1, 1)).sequential();
  std::map<std::string, std::vector<double>> curves;
  for (const char* strategy : {"random", "least_confidence", "margin", "entropy", "bald", "k_center"}) {
    std::vector<double>& mean = curves[strategy];
    mean.resize(static_cast<size_t>(rounds) + 1);
    for (int64_t seed = 1; seed <= seeds; ++seed) {
      const std::vector<double> curve = active_curve(options, pool, strategy, rounds, seed);
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += curve[i] / static_cast<double>(seeds);
    }
  }
  const double goal = curves["random"].back();
  const auto last = static_cast<double>(kFirst + rounds * kRound);
  for (const auto& [strategy, curve] : curves) {
    const double labels = labels_to_reach(curve, goal);
    Row row{.work = "active learning, " + strategy,
            .metric = "labels for the final accuracy of random",
            .unit = "labels",
            .ours = labels,
            .peers = {{"random", last}},
            .ratio_to_best_peer = last / labels,
            .equal = true,
            .note = "accuracy by round:" + listed(curve)};
    row.best_peer = "random";
    report.add(row);
  }
}

int run(const Options& options) {
  Report report("select", options);
  measure_subsets("mlp", options.quick ? 10 : 30, options, report);
  if (!options.quick) measure_subsets("digits_resnet", 10, options, report);
  measure_active(options, report);
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Trains on the hardest 60 % of the digits, chosen by the sample statistics of a training run. Compares the "
      "accuracy with\nthat of all digits and of a random 60 %. Then lets active learning strategies choose the digits "
      "to label next. The\nresults are means over three seeds. --quick: one seed, one model and fewer rounds.",
      run);
}
