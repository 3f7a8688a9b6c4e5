#include "bellows/train/technique.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bellows/train/recipe.h"

namespace bellows::train {

using testing::HasSubstr;

TEST(Techniques, RowsAreCompleteAndChangeWhatTheySay) {
  Registry<Technique> techniques("technique");
  register_techniques(techniques);
  EXPECT_GE(techniques.rows().size(), 12u);
  const std::string page = techniques_page(techniques);
  for (const Technique& row : techniques.rows()) {
    EXPECT_LE(row.title.size(), 17u);
    EXPECT_FALSE(row.changes.empty() || row.source.empty() || row.expected.words.empty()) << row.name;
    EXPECT_EQ(row.tolerance.empty(), row.exactness == Exactness::exact) << row.name;
    EXPECT_THAT(page, HasSubstr("`" + row.name + "`"));
    Recipe off;
    off.image_size = 32;
    off.loader_threads = 0;
    off.optimizer_impl = "loop";
    off.train_metrics = "sync";
    Recipe on = off;
    row.apply(on);
    EXPECT_FALSE(on == off) << row.name << " changes nothing";
    EXPECT_NO_THROW(on.validate()) << row.name;
    if (row.equal_batch) {
      EXPECT_EQ(on.batch_size * on.accumulate, off.batch_size * off.accumulate) << row.name;
      EXPECT_EQ(on.lr, off.lr) << row.name;
    } else {
      EXPECT_EQ(row.exactness, Exactness::lossy) << row.name;
    }
    EXPECT_LE(row.expected.memory_factor, row.saves_memory ? 1 : 2) << row.name;
  }
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

}  // namespace bellows::train
