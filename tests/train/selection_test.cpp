// Samples chosen by what training showed of them, and the other way round: training on those that were chosen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "bellows/data/fingerprint.h"
#include "bellows/data/label.h"
#include "bellows/data/select/sample_stats.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/optim/optimizers.h"
#include "bellows/system/file.h"
#include "bellows/train/data/selection.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Recipe counting_recipe(const TemporaryFolder& folder) {
  Recipe recipe = digits_recipe();
  recipe.model = "mlp";
  recipe.sample_stats = true;
  recipe.run_folder = folder.path() + "/run";
  return recipe;
}

std::string stats_file(const Recipe& recipe) {
  return recipe.run_folder + "/sample_stats.safetensors";
}

std::vector<at::Tensor> tensors_in(const std::string& path) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : io::load_safetensors(path)) tensors.push_back(tensor);
  return tensors;
}

}  // namespace

// What the run noted is what one finds by looking at each step's predictions.
TEST(SampleStatsOfARun, EqualsTheStepsPredictions) {
  Recipe recipe = digits_recipe();
  recipe.model = "mlp";
  recipe.sample_stats = true;
  Job job = make_job(recipe);
  data::SampleStats by_hand(job.train.size());
  const LossFn usual = job.loss;
  job.loss = [&](const data::Batch& batch) {
    StepOutput output = usual(batch);
    by_hand.update(batch.ids(), output.predictions, batch["label"]);
    return output;
  };
  TrainLoop loop(std::move(job));
  loop.run_steps(2 * loop.steps_per_epoch());
  EXPECT_EQ(loop.sample_stats()->forgetting_events(), by_hand.forgetting_events());
  EXPECT_EQ(loop.sample_stats()->difficulty(data::Difficulty::el2n), by_hand.difficulty(data::Difficulty::el2n));
  for (const int64_t n : loop.sample_stats()->presentations()) EXPECT_EQ(n, 2);
}

TEST(SampleStatsOfARun, ChangeNoBit) {
  Recipe recipe = digits_recipe();
  recipe.model = "mlp";
  recipe.epochs = 1;
  TrainLoop plain(make_job(recipe));
  plain.run_steps(plain.steps_per_epoch());
  recipe.sample_stats = true;
  TrainLoop counted(make_job(recipe));
  counted.run_steps(counted.steps_per_epoch());
  expect_same_bits(copies_of(plain.job().model), copies_of(counted.job().model));
}

TEST(SampleStatsOfARun, SurviveAResume) {
  const TemporaryFolder whole_folder, folder;
  const Recipe whole = counting_recipe(whole_folder);
  Trainer(whole).fit();
  Recipe recipe = counting_recipe(folder);
  recipe.save_steps = 5;
  Trainer first(recipe, {.on_step = [&](const TrainLoop& loop) {
                  if (loop.step_count() == 17) first.request_stop();
                }});
  first.fit();
  Trainer second(recipe);
  second.resume();
  second.fit();
  expect_same_bits(tensors_in(stats_file(whole)), tensors_in(stats_file(recipe)));
}

TEST(SampleStatsOfARun, NeedPredictions) {
  Recipe recipe = digits_recipe();
  recipe.model = "mlp";
  recipe.sample_stats = true;
  Job job = make_job(recipe);
  const LossFn usual = job.loss;
  job.loss = [usual](const data::Batch& batch) { return StepOutput(usual(batch).loss); };
  TrainLoop loop(std::move(job));
  EXPECT_THAT(error_of([&] { loop.step(); }),
              HasSubstr("sample_stats needs labels and a loss function that returns predictions"));
}

TEST(Selection, TrainsOnTheHardest) {
  const TemporaryFolder folder;
  Recipe recipe = counting_recipe(folder);
  Trainer(recipe).fit();
  const data::Subset hard = select_samples({.run = recipe.run_folder, .by = "el2n", .keep = 0.6});
  data::SavedStats saved = data::load_sample_stats(stats_file(recipe));
  const std::vector<double> el2n = saved.stats.difficulty(data::Difficulty::el2n);
  const int64_t size = saved.stats.size();
  EXPECT_EQ(hard.of, size);
  EXPECT_EQ(hard.ids.size(), static_cast<size_t>(std::llround(0.6 * static_cast<double>(size))));
  double easiest_kept = 1e9, hardest_left = 0;
  for (int64_t id = 0; id < size; ++id) {
    const bool kept = std::binary_search(hard.ids.begin(), hard.ids.end(), id);
    double& edge = kept ? easiest_kept : hardest_left;
    edge = kept ? std::min(edge, el2n[static_cast<size_t>(id)]) : std::max(edge, el2n[static_cast<size_t>(id)]);
  }
  EXPECT_GE(easiest_kept, hardest_left);

  const std::string file = folder.path() + "/hard.json";
  data::save_subset(file, hard);
  recipe.subset = file;
  recipe.run_folder = folder.path() + "/second";
  std::set<int64_t> seen;
  Trainer(recipe,
          {.on_step = [&](const TrainLoop& loop) { seen.insert(loop.last_ids().begin(), loop.last_ids().end()); }})
      .fit();
  EXPECT_EQ(std::vector<int64_t>(seen.begin(), seen.end()), hard.ids);
  // The second run's statistics are of the whole data set again: what it never saw counts as hardest.
  data::SavedStats second = data::load_sample_stats(stats_file(recipe));
  EXPECT_EQ(second.stats.size(), size);
  EXPECT_EQ(second.source, hard.source);
  const data::Subset harder = select_samples({.run = recipe.run_folder, .by = "loss", .count = 50});
  EXPECT_TRUE(std::includes(hard.ids.begin(), hard.ids.end(), harder.ids.begin(), harder.ids.end()));
}

TEST(Selection, ClassesKeepTheirShares) {
  const TemporaryFolder folder;
  const Recipe recipe = counting_recipe(folder);
  Trainer(recipe).fit();
  const data::Subset hard = select_samples({.run = recipe.run_folder, .by = "loss", .keep = 0.5, .per_class = true});
  std::vector<int64_t> all(10), kept(10);
  const data::SourcePtr source = data::open(recipe.data).source();
  for (int64_t i = 0; i < source->size(); ++i) {
    const data::Sample sample = source->read(i);
    const int64_t label = data::parse_label(*data::find_label(sample), "label");
    ++all[static_cast<size_t>(label)];
    if (std::binary_search(hard.ids.begin(), hard.ids.end(), i)) ++kept[static_cast<size_t>(label)];
  }
  for (size_t c = 0; c < 10; ++c) EXPECT_NEAR(static_cast<double>(kept[c]), static_cast<double>(all[c]) / 2, 1) << c;
}

TEST(Selection, AddsWhatTheModelIsUnsureOf) {
  const TemporaryFolder folder;
  Recipe recipe = counting_recipe(folder);
  const data::Subset first = select_samples({.data = recipe.data, .by = "random", .count = 100});
  const std::string file = folder.path() + "/first.json";
  data::save_subset(file, first);
  recipe.subset = file;
  Trainer(recipe).fit();
  for (const char* strategy : {"least_confidence", "margin", "entropy", "k_center", "random"}) {
    const data::Subset more = select_samples({.run = recipe.run_folder, .by = strategy, .add = 50});
    EXPECT_EQ(more.ids.size(), 150U) << strategy;
    EXPECT_TRUE(std::includes(more.ids.begin(), more.ids.end(), first.ids.begin(), first.ids.end())) << strategy;
    EXPECT_EQ(more.ids, select_samples({.run = recipe.run_folder, .by = strategy, .add = 50}).ids) << strategy;
  }
  EXPECT_THAT(error_of([&] { select_samples({.run = recipe.run_folder, .by = "bald", .add = 50}); }),
              HasSubstr("bald needs a model with dropout"));
  EXPECT_THAT(error_of([&] { select_samples({.run = recipe.run_folder, .by = "margn", .add = 50}); }),
              HasSubstr("margin"));
  EXPECT_THAT(error_of([&] { select_samples({.run = recipe.run_folder, .by = "entropy", .add = 1000000}); }),
              HasSubstr("expected to add 1 to"));
}

TEST(Selection, PoolScoresAreTheModels) {
  const Model model = dropout_net();
  const data::Dataset pool = blobs(40);
  const std::vector<int64_t> labelled = {0, 7, 39};
  const auto chosen = choose_to_label(model, pool, labelled, {.by = "entropy", .count = 5});
  const EvalMode eval(model);
  const torch::NoGradGuard no_grad;
  std::vector<std::pair<double, int64_t>> by_entropy;
  data::Loader loader = pool.sequential().loader();
  loader.start(0);
  while (const auto batch = loader.next()) {
    const at::Tensor p = model.forward((*batch)["image"]).softmax(1);
    for (int64_t row = 0; row < batch->size(); ++row) {
      const int64_t id = batch->ids()[static_cast<size_t>(row)];
      if (std::count(labelled.begin(), labelled.end(), id)) continue;
      by_entropy.emplace_back(-(p[row] * p[row].log()).sum().item<double>(), id);
    }
  }
  std::sort(by_entropy.rbegin(), by_entropy.rend());
  std::vector<int64_t> expected;
  for (size_t i = 0; i < 5; ++i) expected.push_back(by_entropy[i].second);
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(chosen, expected);
}

TEST(Selection, BaldLeavesModelAndGeneratorsAlone) {
  const Model model = dropout_net();
  const data::Dataset pool = blobs(40);
  at::manual_seed(5);
  const at::Tensor next = torch::rand({3});
  at::manual_seed(5);
  const auto chosen = choose_to_label(model, pool, {}, {.by = "bald", .count = 4, .passes = 8});
  EXPECT_TRUE(torch::equal(torch::rand({3}), next));
  EXPECT_TRUE(model.training());
  EXPECT_EQ(chosen, choose_to_label(model, pool, {}, {.by = "bald", .count = 4, .passes = 8}));
  EXPECT_EQ(chosen.size(), 4U);
}

TEST(Selection, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  const Recipe recipe = counting_recipe(folder);
  EXPECT_THAT(error_of([&] { select_samples({.by = "random", .count = 3}); }), HasSubstr("neither"));
  EXPECT_THAT(error_of([&] { select_samples({.data = recipe.data, .by = "random"}); }), HasSubstr("got 0 of them"));
  EXPECT_THAT(error_of([&] { select_samples({.data = recipe.data, .by = "loss", .count = 3}); }),
              HasSubstr("needs the folder of a run"));
  EXPECT_THAT(error_of([&] { select_samples({.data = recipe.data, .by = "random", .keep = 1.5}); }),
              HasSubstr("share in (0, 1], got 1.5"));
  Trainer(recipe).fit();
  EXPECT_THAT(error_of([&] { select_samples({.run = recipe.run_folder, .by = "entropy", .add = 3}); }),
              HasSubstr("was trained on all samples"));
  // A subset of other data.
  data::Subset other = select_samples({.data = recipe.eval_data, .by = "random", .count = 3});
  data::save_subset(folder.path() + "/other.json", other);
  Recipe wrong = recipe;
  wrong.subset = folder.path() + "/other.json";
  wrong.run_folder.clear();
  EXPECT_THAT(error_of([&] { make_job(wrong); }), HasSubstr("subset: the subset was chosen from"));
}

}  // namespace bellows::train
