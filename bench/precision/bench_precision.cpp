// Does low precision cost accuracy? Each model is trained to the end in each precision, with the same seeds.
#include <ATen/Context.h>

#include <cstdio>

#include "bellows/core/seed.h"
#include "bellows/train/step/train_loop.h"
#include "bench/support/bench.h"

namespace bellows::bench {

namespace {

using train::Recipe;

/// A model with what it needs to get near its best on the digits.
struct Subject {
  std::string model;
  int64_t epochs, image_size;
  double lr;
};

struct Precision {
  std::string name, precision, level;
};

const std::vector<Precision> precisions = {{"fp32", "fp32", "O1"},
                                           {"bf16 autocast", "bf16", "O1"},
                                           {"bf16 O2", "bf16", "O2"},
                                           {"fp16 autocast, scaled", "fp16", "O1"}};

Recipe recipe_for(const Subject& subject, const Precision& precision, int64_t seed, const Options& options) {
  Recipe recipe;
  recipe.model = subject.model;
  recipe.data = options.data;
  recipe.epochs = options.quick ? std::max<int64_t>(1, subject.epochs / 3) : subject.epochs;
  recipe.image_size = subject.image_size;
  recipe.lr = subject.lr;
  recipe.warmup_epochs = recipe.epochs > 1 ? 1 : 0;
  recipe.lr_schedule = "cosine";  // at a rate that stays high, seeds differ more than precisions do
  recipe.seed = seed;
  recipe.precision = precision.precision;
  recipe.amp_level = precision.level;
  recipe.channels_last = true;
  recipe.train_metrics = "none";
  return recipe;
}

/// Held-out accuracy after the last epoch, in percent.
double train_to_the_end(const Recipe& recipe) {
  train::TrainLoop loop(train::make_job(recipe));
  loop.run_steps(recipe.epochs * loop.steps_per_epoch());
  loop.take_losses();
  return 100 * loop.evaluate().accuracy;
}

/// One row a precision, ours, with fp32 as the peer. Equal: the median is at most one point below fp32's. 359 held-out
/// digits resolve 0.28 points, and seeds differ by about half a point.
void measure(const Subject& subject, const Options& options, Report& report) {
  const int64_t seeds = options.quick ? 1 : 3;
  std::vector<double> reference;
  for (const Precision& precision : precisions) {
    std::vector<double> accuracies;
    for (int64_t seed = 1; seed <= seeds; ++seed) {
      accuracies.push_back(train_to_the_end(recipe_for(subject, precision, seed, options)));
    }
    if (reference.empty()) reference = accuracies;
    Row row{.work = subject.model + " on the digits, " + precision.name,
            .metric = "held-out accuracy",
            .unit = "%",
            .ours = median(accuracies),
            .peers = {{"fp32", median(reference)}},
            .equal = median(accuracies) >= median(reference) - 1};
    row.ratio_to_best_peer = row.ours / median(reference);
    row.note = "seeds:";
    for (const double accuracy : accuracies) {
      char text[32];
      std::snprintf(text, sizeof text, " %.2f", accuracy);
      row.note += text;
    }
    report.add(row);
  }
}

int run(const Options& options) {
  Report report("precision", options);
  const std::vector<Subject> subjects = {
      {"mlp", 12, 0, 0.05}, {"digits_resnet", 5, 0, 0.05}, {"resnet18", 12, 0, 0.02}};
  for (const Subject& subject : subjects) {
    if (options.quick && subject.model == "resnet18") continue;  // a minute does not hold it
    measure(subject, options, report);
  }
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(argc, argv,
                    "Trains three models on the digits in fp32, in bf16, and in fp16 with loss scaling, with three "
                    "seeds each, and compares the\nheld-out accuracy. --quick: two models, one seed and fewer epochs.",
                    run);
}
