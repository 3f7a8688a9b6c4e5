#include "bellows/train/run/run_record.h"

#include <gmock/gmock.h>
#include <stdlib.h>
#include <torch/torch.h>

#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::HasSubstr;

RunRecord record() {
  return this_run(digits_recipe(), "10 samples, 0123");
}

/// "what changes_bits; " of each, in order.
std::string summary(const std::vector<RunDifference>& list) {
  std::string text;
  for (const RunDifference& difference : list) text += difference.what + (difference.changes_bits ? " bits; " : "; ");
  return text;
}

std::string after(const RunRecord& then, void (*change)(RunRecord&)) {
  RunRecord now = then;
  change(now);
  return summary(differences(then, now));
}

}  // namespace

TEST(RunRecord, SaysWhatTheRunIsMadeWith) {
  const RunRecord run = record();
  for (const char* name : {"bellows", "libtorch", "compiler", "build_flags", "cpu", "cpu_capability", "threads", "os",
                           "deterministic_algorithms", "seed", "onednn", "host"}) {
    ASSERT_TRUE(run.facts.contains(name)) << name;
    EXPECT_FALSE(run.facts.at(name).empty()) << name;
  }
  EXPECT_EQ(run.facts.at("libtorch"), TORCH_VERSION);
  EXPECT_EQ(run.facts.at("threads"), std::to_string(at::get_num_threads()));
  EXPECT_EQ(run.recipe, digits_recipe().to_yaml());
}

TEST(RunRecord, ComesBackFromJson) {
  const RunRecord run = record();
  EXPECT_EQ(run_record_from_json(to_json(run)), run);
  EXPECT_TRUE(differences(run, run_record_from_json(to_json(run))).empty());
  for (const char* text : {"", "{", "[]", "{\"facts\": 3, \"recipe\": \"\", \"data\": \"\"}", "{\"facts\": {}}",
                           "{\"facts\": {\"a\": 1}, \"recipe\": \"\", \"data\": \"\"}"}) {
    EXPECT_THAT(error_of([&] { run_record_from_json(text, "run.json"); }),
                HasSubstr("run.json: expected the record of a run"))
        << text;
  }
}

TEST(RunRecord, FindsWhatChangesBits) {
  const RunRecord then = record();
  EXPECT_EQ(summary(differences(then, then)), "");
  EXPECT_EQ(after(then, [](RunRecord& r) { r.facts["threads"] = "77"; }), "threads bits; ");
  EXPECT_EQ(after(then, [](RunRecord& r) { r.facts["libtorch"] = "2.10.0"; }), "libtorch bits; ");
  EXPECT_EQ(after(then, [](RunRecord& r) { r.data = "11 samples, 0123"; }), "data bits; ");
  EXPECT_EQ(after(then, [](RunRecord& r) { r.facts["host"] = "elsewhere"; }), "host; ");
  EXPECT_EQ(after(then, [](RunRecord& r) { r.facts["seed"] = "5"; }), "");
  EXPECT_EQ(after(then, [](RunRecord& r) { r.facts["env.MKL_CBWR"] = "AVX2"; }), "env.MKL_CBWR bits; ");
  EXPECT_EQ(after(then, [](RunRecord& r) { r.facts["env.MKL_VERBOSE"] = "1"; }), "env.MKL_VERBOSE; ");
  EXPECT_EQ(after(then, [](RunRecord& r) { r.facts["env.OMP_SCHEDULE"] = "static"; }), "env.OMP_SCHEDULE; ");
}

TEST(RunRecord, ComparesTheWeightsOfATeacherByContent) {
  const TemporaryFolder folder;
  const auto with = [&](const std::string& name, const std::string& content) {
    Recipe recipe = digits_recipe();
    recipe.teacher_weights = folder.path() + "/" + name;
    write_bytes(recipe.teacher_weights, content);
    return this_run(recipe, "10 samples, 0123");
  };
  const RunRecord then = with("here", "weights");
  EXPECT_EQ(summary(differences(then, with("moved", "weights"))), "recipe.teacher_weights; ");
  EXPECT_EQ(summary(differences(then, with("here", "others!"))), "teacher_weights_file bits; ");
}

TEST(RunRecord, PutsWhatChangesBitsFirst) {
  EXPECT_EQ(after(record(),
                  [](RunRecord& r) {
                    r.facts["host"] = "elsewhere";
                    r.facts["threads"] = "77";
                  }),
            "threads bits; host; ");
}

TEST(RunRecord, ComparesRecipesKeyByKey) {
  RunRecord then = record(), now = then;
  then.recipe = "lr: 0.1\nlogging_steps: 5\n";
  now.recipe = "# a comment\nlogging_steps: 7\nlr: 0.2\nbatch_size: 32\n";
  EXPECT_EQ(summary(differences(then, now)), "recipe.lr bits; recipe.logging_steps; ");
  now.recipe = then.recipe + "epochs: 20\n";
  EXPECT_EQ(summary(differences(then, now)), "recipe.epochs; ");
  then.recipe = "lr_schedule: cosine\n";
  now.recipe = then.recipe + "epochs: 20\n";
  EXPECT_EQ(summary(differences(then, now)), "recipe.epochs bits; ") << "the rate falls to the last epoch";
  then.recipe = "clip_norm: 1\n";
  now.recipe = "max_grad_norm: 1\n";
  EXPECT_EQ(summary(differences(then, now)), "") << "the same key under its former name";
  now.recipe = "max_grad_norm: 2\n";
  EXPECT_EQ(summary(differences(then, now)), "recipe.max_grad_norm bits; ");
  then.recipe = "a_key_of_old: 1\n";
  now.recipe = "";
  EXPECT_EQ(summary(differences(then, now)), "");
  then.recipe = "- a\n- list\n";
  EXPECT_THAT(error_of([&] { differences(then, now); }), HasSubstr("not YAML of the form"));
}

TEST(RunRecord, AFactThatTheOtherVersionDidNotKnowIsNoDifference) {
  const RunRecord now = record();
  RunRecord then = now;
  then.facts.erase("threads");
  then.facts["gone"] = "1";
  EXPECT_EQ(summary(differences(then, now)), "");
}

TEST(RunRecord, SeesTheProcessAsItIsNow) {
  const RunRecord then = record();
  setenv("MKL_CBWR", "COMPATIBLE", 1);
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);  // as a world of several ranks does: nobody's decision
  at::globalContext().setDeterministicAlgorithms(true, true);
  const RunRecord now = record();
  at::globalContext().setDeterministicAlgorithms(false, false);
  unsetenv("MKL_CBWR");
  unsetenv("TORCH_FR_BUFFER_SIZE");
  EXPECT_EQ(summary(differences(then, now)), "deterministic_algorithms bits; env.MKL_CBWR bits; ");
  EXPECT_EQ(differences(then, now)[0].to_string(), "deterministic_algorithms: off before, warn now");
  EXPECT_EQ(differences(then, now)[1].to_string(), "env.MKL_CBWR: not set before, COMPATIBLE now");
}

}  // namespace bellows::train
