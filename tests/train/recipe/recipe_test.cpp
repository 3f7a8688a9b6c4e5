#include "bellows/train/recipe/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string parse_error(const std::string& text) {
  return error_of([&] { Recipe::parse(text, "my.yaml"); });
}

}  // namespace

TEST(Recipe, NothingGivenIsTheDefault) {
  EXPECT_EQ(Recipe::parse(""), Recipe{});
  EXPECT_EQ(Recipe::parse("# only words\n"), Recipe{});
  EXPECT_NO_THROW(Recipe{}.validate());
}

TEST(Recipe, ReadsEveryKindOfValue) {
  const Recipe recipe = Recipe::parse(
      "model: resnet18   # a name\nepochs: 3\nlr: 1e-3\nmomentum: .5\nweight_decay: 0\nchannels_last: true\nprecision: "
      "'bf16'\n"
      "data: \"a folder: with #signs\"\nweights:\n");
  EXPECT_EQ(recipe.model, "resnet18");
  EXPECT_EQ(recipe.epochs, 3);
  EXPECT_EQ(recipe.lr, 1e-3);
  EXPECT_EQ(recipe.momentum, 0.5);
  EXPECT_EQ(recipe.weight_decay, 0);
  EXPECT_TRUE(recipe.channels_last);
  EXPECT_EQ(recipe.precision, "bf16");
  EXPECT_EQ(recipe.data, "a folder: with #signs");
  EXPECT_EQ(recipe.weights, "");
  EXPECT_EQ(recipe.batch_size, Recipe{}.batch_size);
}

TEST(Recipe, WrittenAndReadBackIsTheSame) {
  Recipe recipe;
  recipe.lr = 0.1 + 0.2;
  recipe.weight_decay = 1e-300;
  recipe.seed = 9007199254740993;
  recipe.channels_last = true;
  recipe.augment = "crop";
  for (const char* text : {"", "~", "null", "true", "1.5", "train-{000..015}.tar", "{a,b}", "[x]", " padded ",
                           "two\nlines", "C: #1", "ümlaut", "\"quoted\"", "- item", "&anchor", "*alias", "a::b"}) {
    recipe.data = text;
    EXPECT_EQ(Recipe::parse(recipe.to_yaml()), recipe) << recipe.to_yaml();
    EXPECT_EQ(Recipe::parse(recipe.to_yaml(true)), recipe) << recipe.to_yaml(true);
  }
}

TEST(Recipe, UnknownKeySuggestsTheNearest) {
  EXPECT_THAT(
      parse_error("model: mlp\nepoch: 3\n"),
      AllOf(HasSubstr("my.yaml, line 2"), HasSubstr("unknown key \"epoch\"."), HasSubstr("Did you mean \"epochs\"?")));
  EXPECT_THAT(parse_error("chanels_last: true\n"), HasSubstr("Did you mean \"channels_last\"?"));
  EXPECT_THAT(parse_error("zebra: 1\n"), AllOf(Not(HasSubstr("Did you mean")), HasSubstr("Known keys: model,")));
}

TEST(Recipe, FormerKeyNamesTheNewOne) {
  EXPECT_THAT(parse_error("model: mlp\nclip_norm: 1\n"),
              HasSubstr("my.yaml, line 2: unknown key \"clip_norm\". The key is now called max_grad_norm."));
  Recipe recipe;
  EXPECT_THAT(error_of([&] { recipe.set("loader_threads=4"); }),
              HasSubstr("command line: unknown key \"loader_threads\". The key is now called num_workers."));
  int renamed = 0;
  for (const RecipeField& field : recipe_fields()) {
    if (field.former_name.empty()) continue;
    ++renamed;
    EXPECT_THAT(parse_error(field.former_name + ": " + field.default_value),
                HasSubstr("The key is now called " + field.name + "."));
  }
  EXPECT_EQ(renamed, 21);
}

TEST(Recipe, WrongTypesAndRangesNameKeyValueAndLine) {
  EXPECT_THAT(parse_error("\n\nlr: fast\n"),
              AllOf(HasSubstr("line 3"), HasSubstr("lr = \"fast\""), HasSubstr("a number of at least 0")));
  EXPECT_THAT(parse_error("epochs: 2.5\n"),
              AllOf(HasSubstr("epochs = \"2.5\""), HasSubstr("an integer of 1 to 1000000000")));
  EXPECT_THAT(parse_error("epochs: 99999999999999999999\n"), HasSubstr("an integer"));
  EXPECT_THAT(parse_error("epochs: 3 4\n"), HasSubstr("\"3 4\""));
  EXPECT_THAT(parse_error("batch_size: 0\n"), HasSubstr("an integer of 1 to 1048576"));
  EXPECT_THAT(parse_error("lr: -1\n"), HasSubstr("lr = \"-1\""));
  EXPECT_THAT(parse_error("lr: nan\n"), HasSubstr("lr = \"nan\""));
  EXPECT_THAT(parse_error("lr: inf\n"), HasSubstr("lr = \"inf\""));
  EXPECT_THAT(parse_error("target_accuracy: 97\n"), HasSubstr("0 to 1"));
  EXPECT_THAT(parse_error("channels_last: 1\n"), HasSubstr("true or false"));
  EXPECT_THAT(parse_error("augment: cropflip\n"),
              AllOf(HasSubstr("augment = \"cropflip\": unknown step"), HasSubstr("Expected none, crop, crop_flip")));
  EXPECT_THAT(parse_error("warmup_epochs: 11\nepochs: 10\n"),
              AllOf(HasSubstr("warmup_epochs = 11"), HasSubstr("epochs = 10")));
}

TEST(Recipe, WhatIsNoListOfKeysIsRefused) {
  EXPECT_THAT(parse_error("- a\n- b\n"), HasSubstr("key: value"));
  EXPECT_THAT(parse_error("just words"), HasSubstr("key: value"));
  EXPECT_THAT(parse_error("lr: [1, 2]\n"), AllOf(HasSubstr("line 1"), HasSubstr("one value")));
  EXPECT_THAT(parse_error("lr: {a: 1}\n"), HasSubstr("one value"));
  EXPECT_THAT(parse_error("lr: 1\nepochs: [3\n"), AllOf(HasSubstr("my.yaml, line"), HasSubstr("not valid YAML")));
  EXPECT_THAT(parse_error("lr: 1\nlr: 2\n"), AllOf(HasSubstr("line 2"), HasSubstr("twice")));
  EXPECT_THAT(error_of([] { Recipe::load("/nowhere/recipe.yaml"); }), HasSubstr("/nowhere/recipe.yaml"));
}

TEST(Recipe, OverridesFromTheCommandLine) {
  Recipe recipe;
  recipe.set("lr=0.25");
  recipe.set("data=a=b");
  recipe.set("channels_last=true");
  EXPECT_EQ(recipe.lr, 0.25);
  EXPECT_EQ(recipe.data, "a=b");
  EXPECT_TRUE(recipe.channels_last);
  EXPECT_THAT(error_of([&] { recipe.set("lr"); }), HasSubstr("key=value"));
  EXPECT_THAT(error_of([&] { recipe.set("lrr=1"); }), HasSubstr("Did you mean \"lr\"?"));
  EXPECT_THAT(error_of([&] { recipe.set("epochs=many"); }), HasSubstr("epochs = \"many\""));
}

TEST(Recipe, MembersSetInCodeAreCheckedToo) {
  Recipe recipe;
  recipe.precision = "fp8";
  EXPECT_THAT(error_of([&] { recipe.validate(); }), HasSubstr("precision = \"fp8\""));
  EXPECT_THAT(error_of([&] { Trainer trainer(recipe); }), HasSubstr("precision = \"fp8\""));
}

TEST(Recipe, EveryKeyIsDocumented) {
  std::set<std::string> names;
  for (const RecipeField& field : recipe_fields()) {
    EXPECT_FALSE(field.help.empty()) << field.name;
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    EXPECT_EQ(Recipe::parse(field.name + ": " + field.default_value), Recipe{}) << field.name;
  }
}

}  // namespace bellows::train
