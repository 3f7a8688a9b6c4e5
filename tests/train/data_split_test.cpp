// Which samples are trained on, and which are kept for evaluation.
#include "bellows/train/data/data_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "bellows/data/convert/convert.h"
#include "bellows/data/select/sample_stats.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/data/selection.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::HasSubstr;
using testing::IsEmpty;

/// A shard of digits under other names, in a folder of their own.
Recipe recipe_of_folder(const TemporaryFolder& folder, const std::vector<std::string>& names) {
  Recipe recipe = digits_recipe();
  recipe.model = "mlp";
  recipe.eval_data.clear();
  recipe.data = folder.path() + "/set";
  std::filesystem::create_directories(recipe.data);
  for (const std::string& name : names)
    std::filesystem::copy_file(digits_folder() + "/train-000.tar", recipe.data + "/" + name + ".tar");
  return recipe;
}

std::set<int64_t> ids_of(const data::Dataset& dataset) {
  std::set<int64_t> ids;
  for (int64_t i = 0; i < dataset.size(); ++i) ids.insert(dataset.source()->read(i).id);
  return ids;
}

}  // namespace

TEST(DataSplit, HoldsOutATenthOfAFolderWithoutATestSplit) {
  const TemporaryFolder folder;
  Recipe shards = recipe_of_folder(folder, {"photos-0", "photos-1"}), mds = shards;
  mds.data = folder.path() + "/mds";
  data::convert(data::open(digits_folder() + "/train-000.tar"), mds.data, {.format = "mds"});
  for (Recipe recipe : {shards, mds}) {
    const Job job = make_job(recipe);
    ASSERT_TRUE(job.eval) << recipe.data;
    const int64_t size = recipe.data == mds.data ? 360 : 720;
    EXPECT_EQ(job.eval->size(), size / 10);
    EXPECT_EQ(job.train.size(), size - size / 10);
    EXPECT_THAT(job.note, HasSubstr(c10::str("Held out for evaluation: ", size / 10, " of ", size, " samples")));
    std::set<int64_t> all = ids_of(job.train);
    for (const int64_t id : ids_of(*job.eval)) EXPECT_TRUE(all.insert(id).second) << id;
    EXPECT_EQ(static_cast<int64_t>(all.size()), size);
    EXPECT_EQ(ids_of(*open_eval_data(recipe)), ids_of(*job.eval));
    recipe.seed = 7;
    EXPECT_EQ(resolve(recipe).split().held_out, resolve(shards.data == recipe.data ? shards : mds).split().held_out);
  }
}

TEST(DataSplit, TakesWhatIsCalledTrainAndTest) {
  for (const auto& [evaluated, other] : {std::pair{"test", "val"}, {"val", "extra"}, {"validation", "zebra"}}) {
    const TemporaryFolder folder;
    Recipe recipe = recipe_of_folder(folder, {"train-0", std::string(evaluated) + "-0", std::string(other) + "-0"});
    const DataSplit split = resolve(recipe).split();
    EXPECT_EQ(split.whole.info().split, "train");
    EXPECT_EQ(split.eval_split, evaluated);
    EXPECT_THAT(split.held_out, IsEmpty());
    EXPECT_EQ(make_job(recipe).note, "");
  }
  Recipe recipe = digits_recipe();
  recipe.eval_data.clear();
  EXPECT_FALSE(make_job(recipe).eval) << "files are trained on whole";
  const TemporaryFolder folder;
  recipe = recipe_of_folder(folder, {"photos-0"});
  recipe.eval_data = digits_folder();
  EXPECT_EQ(make_job(recipe).train.size(), 360);
  EXPECT_EQ(make_job(recipe).eval->size(), 359) << "its split test";
}

TEST(DataSplit, SaysWhatToDoWhereNoSplitIsForTraining) {
  const TemporaryFolder folder;
  const Recipe recipe = recipe_of_folder(folder, {"first-0", "second-0"});
  EXPECT_THAT(error_of([&] { make_job(recipe); }),
              HasSubstr(recipe.data + " has several splits, but none has the name \"train\": first, second. Choose one "
                                      "with the option `split`, or name its files."));
}

TEST(DataSplit, IsTheSameForSelection) {
  const TemporaryFolder folder;
  Recipe recipe = recipe_of_folder(folder, {"photos-0"});
  recipe.sample_stats = true;
  recipe.run_folder = folder.path() + "/run";
  recipe.epochs = 1;
  Trainer(recipe).fit();
  const std::vector<int64_t> held_out = resolve(recipe).split().held_out;
  const auto expect_none_held_out = [&](const data::Subset& subset) {
    for (const int64_t id : held_out) EXPECT_FALSE(std::binary_search(subset.ids.begin(), subset.ids.end(), id));
  };
  const data::Subset hard = select_samples({.run = recipe.run_folder, .by = "loss", .keep = 0.5});
  EXPECT_EQ(hard.ids.size(), 162u);
  expect_none_held_out(hard);
  const data::Subset first = select_samples({.data = recipe.data, .by = "random", .count = 100});
  expect_none_held_out(first);
  recipe.subset = folder.path() + "/first.json";
  recipe.run_folder += "2";
  data::save_subset(recipe.subset, first);
  EXPECT_EQ(make_job(recipe).train.size(), 100);
  Trainer(recipe).fit();
  for (const char* by : {"entropy", "k_center"}) {
    const data::Subset more = select_samples({.run = recipe.run_folder, .by = by, .add = 224});
    EXPECT_EQ(more.ids.size(), 324u) << "all that are not held out";
    expect_none_held_out(more);
  }
}

TEST(Selection, ChecksWhatIsAskedForFirst) {
  const auto error = [](const Selection& selection) { return error_of([&] { select_samples(selection); }); };
  EXPECT_THAT(error({.run = "/nowhere", .by = "forgeting", .keep = 0.5}),
              HasSubstr("no rule for samples with labels has the name \"forgeting\". Did you mean \"forgetting\"? The "
                        "rules are: forgetting, el2n, loss, margin, entropy, random."));
  EXPECT_THAT(error({.run = "/nowhere", .by = "forgetting", .add = 5}),
              HasSubstr("no rule for samples to label has the name \"forgetting\". The rules are: least_confidence, "));
  EXPECT_THAT(error({.data = "/nowhere", .by = "random", .add = 5}), HasSubstr("Set `run` to the folder of a run"));
}

}  // namespace bellows::train
