// `bellows import`, and the files that it writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/system/file.h"
#include "bellows/train/recipe/recipe.h"
#include "failure.h"
#include "forked.h"
#include "process.h"

namespace bellows::cli {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* ds_config = R"({
  "train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "betas": [0.9, 0.95], "weight_decay": 0}},
  "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
  "gradient_clipping": "auto"
})";

void expect_import_failure(std::vector<std::string> arguments, const std::string& words) {
  arguments.insert(arguments.begin(), "import");
  expect_failure(run_forked(arguments), 2, words);
}

}  // namespace

TEST(ImportCommand, PrintsARecipeAndTheSettingsThatItLacks) {
  const Scratch folder;
  std::ofstream(folder / "ds.json") << ds_config;
  const Outcome outcome = run_forked({"import", folder / "ds.json", "--ranks", "8", "--json", folder / "i.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const train::Recipe recipe = train::Recipe::parse(outcome.out);
  EXPECT_EQ(recipe.batch_size, 32);  // the default
  EXPECT_EQ(recipe.gradient_accumulation_steps, 2);
  EXPECT_EQ(recipe.lr, 0.001);
  EXPECT_EQ(recipe.data_parallel, "zero2");
  EXPECT_EQ(recipe.offload_state, "host");
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("optimizer: adamw\n"), HasSubstr("ranks: 8\n"), Not(HasSubstr("epochs"))));
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("Not imported (2):\n"), HasSubstr("  optimizer.params.betas: [0.9,0.95]\n    A recipe"),
                    HasSubstr("  gradient_clipping: \"auto\"\n    The Hugging Face Trainer")));
  const auto json = nlohmann::json::parse(read_text_file(folder / "i.json"));
  EXPECT_EQ(json["ranks"], 8);
  EXPECT_EQ(json["recipe"]["optimizer"], "adamw");
  EXPECT_EQ(json["recipe"]["gradient_accumulation_steps"], 2);
  ASSERT_EQ(json["unsupported"].size(), 2u);
  EXPECT_EQ(json["unsupported"][0]["key"], "gradient_clipping");
  EXPECT_EQ(json["unsupported"][0]["value"], "\"auto\"");
}

TEST(ImportCommand, WritesAFileThatTrainReads) {
  const Scratch folder;
  std::ofstream(folder / "ds.json") << R"({"train_batch_size": 64, "tensorboard": {"enabled": true}})";
  const Outcome outcome = run_forked({"import", folder / "ds.json", "--out", folder / "recipe.yaml"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Not(HasSubstr("Not imported")));
  EXPECT_EQ(outcome.out, "Recipe: " + folder / "recipe.yaml" + "\nChanged keys: 2\n");
  EXPECT_EQ(train::Recipe::load(folder / "recipe.yaml").batch_size, 64);
  const Outcome json = run_forked({"import", folder / "ds.json", "--out", folder / "recipe.yaml", "--json"});
  EXPECT_EQ(nlohmann::json::parse(json.out)["recipe"]["log"], "tensorboard");
  std::ofstream(folder / "empty.json") << "{}";
  const Outcome nothing = run_forked({"import", folder / "empty.json", "--out", folder / "recipe.yaml"});
  EXPECT_EQ(nothing.exit_code, 0) << nothing.err;
  EXPECT_EQ(train::Recipe::load(folder / "recipe.yaml"), train::Recipe{});
}

TEST(ImportCommand, ExplainsWrongUse) {
  const Scratch folder;
  std::ofstream(folder / "ds.json") << ds_config;
  expect_import_failure({folder / "ds.json"}, "= 4 × 2 × 1 = 8, found 64. Set --ranks to 8.");
  expect_import_failure({folder / "ds.json", "--ranks", "0"}, "--ranks: expected an integer");
  expect_import_failure({folder / "ds.json", "--ranks", "8", "--out", "-"}, "--out needs the name of a file");
  expect_import_failure({folder / "ds.json", "--ranks", "8", "--out", folder / "./ds.json"},
                        "FILE and --out name the same file");
  expect_import_failure({folder / "none.json"}, "none.json");
  std::ofstream(folder / "bad.json") << R"({"train_batch_size": "many"})";
  expect_import_failure({folder / "bad.json", "--out", folder / "r.yaml"},
                        "bad.json: train_batch_size: expected an integer, found \"many\".");
  EXPECT_FALSE(std::filesystem::exists(folder / "r.yaml"));
  EXPECT_EQ(run_forked({"import"}).exit_code, 2);
}

}  // namespace bellows::cli
