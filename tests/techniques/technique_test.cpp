#include "bellows/techniques/technique.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "bellows/techniques/inference_technique.h"
#include "bellows/train/recipe/recipe.h"
#include "bellows/train/resolved_job.h"

namespace bellows::train {

using testing::HasSubstr;

TEST(Techniques, RowsAreCompleteAndChangeWhatTheySay) {
  Registry<Technique> techniques("technique");
  register_techniques(techniques);
  EXPECT_GE(techniques.rows().size(), 12u);
  const std::string page = techniques_page(techniques);
  for (const Technique& row : techniques.rows()) {
    std::istringstream words(row.title);
    for (std::string word; words >> word;) EXPECT_LE(word.size(), 17u) << "it fits the first column of the ladder";
    EXPECT_FALSE(row.changes.empty() || row.source.empty() || row.expected.words.empty()) << row.name;
    EXPECT_EQ(row.tolerance.empty(), row.exactness == Exactness::exact) << row.name;
    EXPECT_THAT(page, HasSubstr("`" + row.name + "`"));
    Recipe off;
    off.image_size = 32;
    off.num_workers = 0;
    off.optimizer_impl = "loop";
    off.train_metrics = "sync";
    Recipe on = off;
    row.apply(on);
    EXPECT_FALSE(on == off) << row.name << " changes nothing";
    EXPECT_NO_THROW(on.validate()) << row.name;
    if (row.equal_batch) {
      EXPECT_EQ(on.batch_size * on.gradient_accumulation_steps, off.batch_size * off.gradient_accumulation_steps)
          << row.name;
      EXPECT_EQ(on.lr, off.lr) << row.name;
    } else {
      EXPECT_EQ(row.exactness, Exactness::lossy) << row.name;
    }
    EXPECT_LE(row.expected.memory_factor, row.saves_memory ? 1 : 2) << row.name;
  }
}

TEST(Techniques, Bf16IsExpectedToHelpOnlyWhereItIsFast) {
  Registry<InferenceTechnique> techniques("technique");
  register_inference_techniques(techniques);
  const InferenceTechnique& bf16 = techniques.at("bf16");
  ASSERT_TRUE(bf16.expected_on);
  Machine intel;
  intel.cpu_family_model = "6/106";
  intel.isa = {"avx512_bf16"};
  EXPECT_EQ(bf16.expected_on(intel).time_factor, 1);
  EXPECT_THAT(bf16.expected_on(intel).words, HasSubstr("not faster in bf16"));
  intel.isa.emplace_back("amx_bf16");
  EXPECT_LT(bf16.expected_on(intel).time_factor, 0.9);
}

TEST(Techniques, InferenceRowsAreCompleteAndChangeSettings) {
  Registry<InferenceTechnique> techniques("technique");
  register_inference_techniques(techniques);
  const std::string page = techniques_page(techniques);
  Machine machine;
  machine.isa = {"avx512_bf16"};
  InferenceSettings settings;
  for (const InferenceTechnique& row : techniques.rows()) {
    EXPECT_LE(row.title.size(), 17u) << "it fits the first column of the ladder";
    EXPECT_FALSE(row.changes.empty() || row.source.empty() || row.expected.words.empty()) << row.name;
    EXPECT_EQ(row.tolerance.empty(), row.exactness == Exactness::exact) << row.name;
    EXPECT_THAT(page, HasSubstr("`" + row.name + "`"));
    EXPECT_EQ(row.obstacle ? row.obstacle(settings, machine) : "", "") << row.name;
    const auto words = [](const InferenceSettings& one) {
      return c10::str(one.recipe.to_yaml(), one.inference_mode, one.compile, one.int8, one.keep_sensitive_layers);
    };
    InferenceSettings changed = settings;
    row.apply(changed);
    EXPECT_NE(words(changed), words(settings)) << row.name << " changes nothing";
    EXPECT_NO_THROW(changed.recipe.validate()) << row.name;
  }
  const InferenceTechnique& int8 = techniques.at("int8");
  techniques.at("bf16").apply(settings);
  int8.apply(settings);
  EXPECT_EQ(settings.recipe.precision, "fp32") << "int8 replaces bf16";
  EXPECT_TRUE(settings.compile && settings.inference_mode);
  EXPECT_THAT(int8.obstacle(settings, machine), HasSubstr("int8 already"));
  settings = {};
  settings.recipe.device = "cuda";
  EXPECT_THAT(techniques.at("compiled").obstacle(settings, machine), HasSubstr("CPU only"));
  settings.recipe.model = "bert-base";
  EXPECT_THAT(techniques.at("channels_last").obstacle(settings, machine), HasSubstr("does not read images"));
}

TEST(Techniques, Bf16NeedsTheArithmetic) {
  Registry<Technique> techniques("technique");
  register_techniques(techniques);
  Machine machine;
  machine.isa = {"avx2", "avx512f"};
  EXPECT_THAT(techniques.at("bf16_autocast").obstacle(Recipe{}, machine), HasSubstr("no bfloat16 arithmetic"));
  machine.isa.push_back("avx512_bf16");
  EXPECT_EQ(techniques.at("bf16_autocast").obstacle(Recipe{}, machine), "");
}

TEST(Techniques, MemoryRungsApplyWhereTheyAreOfUse) {
  const Machine machine;
  const auto obstacle = [&](const char* name, const char* setting) {
    Recipe recipe = with_model_defaults(Recipe{});
    recipe.optimizer_impl = "loop";
    if (*setting != '\0') recipe.set(setting);
    const Technique& technique = technique_table().at(name);
    EXPECT_TRUE(technique.saves_memory) << name;
    const std::string why = technique.obstacle ? technique.obstacle(recipe, machine) : "";
    if (why.empty()) {
      technique.apply(recipe);
      EXPECT_NO_THROW(recipe.validate()) << name;
    }
    return why;
  };
  for (const char* name : {"accumulation", "int8_state", "int4_state", "recompute_budget", "recompute",
                           "bf16_activations", "int8_activations", "int4_activations"}) {
    EXPECT_EQ(obstacle(name, ""), "") << name;
  }
  EXPECT_EQ(obstacle("adafactor", "optimizer=adamw"), "");
  EXPECT_THAT(obstacle("adafactor", ""), HasSubstr("adamw"));
  EXPECT_THAT(obstacle("int8_state", "momentum=0"), HasSubstr("no state"));
  EXPECT_THAT(obstacle("int4_state", "optimizer=rmsprop"), HasSubstr("rmsprop"));
  EXPECT_THAT(obstacle("int4_state", "channels_last=true"), HasSubstr("row-major"));
  EXPECT_THAT(obstacle("int4_activations", "device=cuda"), HasSubstr("CPU only"));
  EXPECT_THAT(obstacle("bf16_activations", "precision=bf16"), HasSubstr("16 bits"));
  EXPECT_THAT(obstacle("recompute", "model=mlp"), HasSubstr("does not define blocks"));
  EXPECT_THAT(obstacle("accumulation", "batch_size=4"), HasSubstr("too small"));
}

}  // namespace bellows::train
