#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>
#include <set>

#include "bellows/core/seed.h"
#include "bellows/data/select/active.h"
#include "bellows/data/select/sample_stats.h"
#include "bellows/data/select/subset.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/system/file.h"
#include "tests/data/support.h"
#include "tests/support/errors.h"

namespace bellows::data {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const double kNever = std::numeric_limits<double>::infinity();

std::string temporary_path(const std::string& name) {
  static const testing::TemporaryFolder folder;
  return folder / name;
}

at::Tensor scores_of(int64_t rows, int64_t classes, uint64_t seed) {
  RandomStream random(seed);
  at::Tensor scores = at::zeros({rows, classes});
  for (int64_t i = 0; i < scores.numel(); ++i)
    scores.data_ptr<float>()[i] = static_cast<float>(8 * random.uniform() - 4);
  return scores;
}

/// One presentation of sample 0 among two classes, right or wrong.
void present(SampleStats& stats, bool right, int64_t id = 0) {
  stats.update({id}, at::tensor({right ? 1.0F : 0.0F, right ? 0.0F : 1.0F}).view({1, 2}), at::tensor({int64_t{0}}));
}

TEST(SampleStatsTest, CountsForgettingAsTonevaDefinesIt) {
  SampleStats stats(3);
  for (const bool right : {true, false, true, false, false, true}) present(stats, right);  // forgotten twice
  for (int i = 0; i < 4; ++i) present(stats, false, 1);                                    // never learned
  EXPECT_THAT(stats.forgetting_events(), ElementsAre(2, 0, 0));
  EXPECT_THAT(stats.learned_at(), ElementsAre(0, -1, -1));
  EXPECT_THAT(stats.presentations(), ElementsAre(6, 4, 0));
  EXPECT_THAT(stats.difficulty(Difficulty::forgetting), ElementsAre(2, kNever, kNever));
}

TEST(SampleStatsTest, LearnedLate) {
  SampleStats stats(1);
  for (const bool right : {false, false, true, true}) present(stats, right);
  EXPECT_THAT(stats.learned_at(), ElementsAre(2));
  EXPECT_THAT(stats.forgetting_events(), ElementsAre(0));
}

// The same formulas in double precision, one sample at a time. fp32 sums of at most 7 terms of size up to 8: 1e-5.
TEST(SampleStatsTest, EqualsTheFormulas) {
  constexpr int64_t n = 17, classes = 7, epochs = 3;
  SampleStats stats(n);
  std::vector<double> loss(n), margin(n), el2n(n), entropy(n);
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    const at::Tensor scores = scores_of(n, classes, 100 + static_cast<uint64_t>(epoch));
    std::vector<int64_t> ids = random_permutation(n, static_cast<uint64_t>(epoch)), labels;
    for (const int64_t id : ids) labels.push_back(id % classes);
    stats.update(ids, scores, at::tensor(labels));
    for (int64_t row = 0; row < n; ++row) {
      const float* s = scores.const_data_ptr<float>() + row * classes;
      const auto id = static_cast<size_t>(ids[static_cast<size_t>(row)]);
      const int64_t y = labels[static_cast<size_t>(row)];
      double sum = 0, best_other = -kNever, distance = 0, h = 0;
      for (int64_t c = 0; c < classes; ++c) sum += std::exp(static_cast<double>(s[c]));
      for (int64_t c = 0; c < classes; ++c) {
        const double p = std::exp(static_cast<double>(s[c])) / sum;
        if (c != y) best_other = std::max(best_other, static_cast<double>(s[c]));
        distance += (p - (c == y)) * (p - (c == y));
        h -= p * std::log(p);
      }
      loss[id] += (std::log(sum) - s[y]) / epochs;
      margin[id] += (best_other - s[y]) / epochs;
      el2n[id] += std::sqrt(distance) / epochs;
      entropy[id] = h;
    }
  }
  const auto expect = [&](Difficulty by, const std::vector<double>& expected) {
    const std::vector<double> found = stats.difficulty(by);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5) << i;
  };
  expect(Difficulty::loss, loss);
  expect(Difficulty::margin, margin);
  expect(Difficulty::el2n, el2n);
  expect(Difficulty::entropy, entropy);
}

TEST(SampleStatsTest, CertainScoresGiveNoNan) {
  SampleStats stats(1);
  stats.update({0}, at::tensor({200.0F, -200.0F}).view({1, 2}), at::tensor({int64_t{0}}));
  EXPECT_THAT(stats.difficulty(Difficulty::entropy), ElementsAre(0));
  EXPECT_THAT(stats.difficulty(Difficulty::el2n), ElementsAre(0));
}

TEST(SampleStatsTest, GoesOnFromAFile) {
  const std::string path = temporary_path("stats.safetensors");
  SampleStats whole(4), first(4);
  for (const bool right : {true, false}) {
    present(whole, right, 2);
    present(first, right, 2);
  }
  first.save(path, "4 samples, 00");
  SavedStats saved = load_sample_stats(path);
  EXPECT_EQ(saved.source, "4 samples, 00");
  for (const bool right : {true, false}) {
    present(whole, right, 2);
    present(saved.stats, right, 2);
  }
  EXPECT_EQ(whole.forgetting_events(), saved.stats.forgetting_events());
  EXPECT_EQ(whole.difficulty(Difficulty::loss), saved.stats.difficulty(Difficulty::loss));
}

TEST(SampleStatsTest, RefusesWhatDoesNotFit) {
  SampleStats stats(2);
  const at::Tensor scores = at::zeros({2, 3}), labels = at::tensor({int64_t{0}, int64_t{1}});
  EXPECT_THAT(message_of([&] { stats.update({0}, scores, labels); }), HasSubstr("expected scores [1, C]"));
  EXPECT_THAT(message_of([&] { stats.update({0, 1}, scores, labels.to(at::kFloat)); }), HasSubstr("integer labels"));
  EXPECT_THAT(message_of([&] { stats.update({0, 2}, scores, labels); }), HasSubstr("expected ids in [0, 2), got 2"));
  stats.update({0, 1}, scores, labels + 2);
  EXPECT_THAT(message_of([&] { stats.presentations(); }),
              HasSubstr("sample 1 has a label that is not a class of the scores"));
  EXPECT_THAT(message_of([&] { parse_difficulty("forgeting"); }), HasSubstr("forgetting"));
  const std::string path = temporary_path("other.safetensors");
  io::save_safetensors(path, {{"a", at::zeros({2})}});
  EXPECT_THAT(message_of([&] { load_sample_stats(path); }), HasSubstr("contains no sample statistics"));
}

TEST(SubsetTest, KeepsTheHardest) {
  EXPECT_THAT(greatest({1, 5, kNever, 3}, 2, 7), ElementsAre(1, 2));
  EXPECT_THAT(greatest({1, 2}, 0, 7), ElementsAre());
  EXPECT_THAT(message_of([&] { greatest({1, 2}, 3, 7); }), HasSubstr("choose 0 to 2 samples, got 3"));
  EXPECT_THAT(message_of([&] { greatest({1, NAN}, 1, 7); }), HasSubstr("sample 1 is NaN"));
}

// 400 draws of 3 out of 10: each id is expected 120 times, with a standard deviation of 9.2.
TEST(SubsetTest, EqualValuesAreDrawnEvenly) {
  std::vector<int64_t> drawn(10);
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const auto ids = random_subset(10, 3, seed);
    ASSERT_EQ(std::set<int64_t>(ids.begin(), ids.end()).size(), 3U);
    for (const int64_t id : ids) ++drawn[static_cast<size_t>(id)];
  }
  for (const int64_t count : drawn) EXPECT_NEAR(count, 120, 5 * 9.2);
}

TEST(SubsetTest, ClassesKeepTheirShares) {
  std::vector<double> values;
  std::vector<int64_t> labels;
  labels.reserve(100);
  for (int64_t i = 0; i < 100; ++i) {
    labels.push_back(i % 10 < 7 ? 0 : -3);  // 70 and 30
    values.push_back(static_cast<double>(i % 10 < 7 ? i : -i));
  }
  const auto ids = greatest_per_class(values, labels, 31, 5);
  ASSERT_EQ(ids.size(), 31U);
  const auto zeros =
      std::count_if(ids.begin(), ids.end(), [&](int64_t id) { return labels[static_cast<size_t>(id)] == 0; });
  EXPECT_NEAR(static_cast<double>(zeros), 21.7, 1);
  EXPECT_TRUE(std::count(ids.begin(), ids.end(), 96));  // the greatest of class 0
  EXPECT_TRUE(std::count(ids.begin(), ids.end(), 7));   // the greatest of class -3
}

TEST(SubsetTest, AFileOfItsOwn) {
  const std::string path = temporary_path("subset.json");
  save_subset(path, {.source = "9 samples, ab", .rule = "by hand", .of = 9, .ids = {7, 0, 3}});
  const Subset subset = load_subset(path);
  EXPECT_EQ(subset.source, "9 samples, ab");
  EXPECT_EQ(subset.rule, "by hand");
  EXPECT_EQ(subset.of, 9);
  EXPECT_THAT(subset.ids, ElementsAre(0, 3, 7));
  EXPECT_THAT(message_of([&] { save_subset(path, {.of = 3, .ids = {3}}); }), HasSubstr("ids in [0, 3), got 3"));
  EXPECT_THAT(message_of([&] { save_subset(path, {.of = 3, .ids = {1, 1}}); }), HasSubstr("each once"));
}

TEST(SubsetTest, DamagedFilesAreErrors) {
  const std::string path = temporary_path("damaged.json");
  save_subset(path, {.source = "9 samples", .rule = "r", .of = 9, .ids = {1, 2, 3}});
  const std::string whole = read_text_file(path);
  for (size_t size = 0; size + 1 < whole.size(); ++size) {
    write_text_file(path, whole.substr(0, size));
    EXPECT_THROW(load_subset(path), c10::ValueError) << size;
  }
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    write_text_file(path, text.replace(text.find(from), from.size(), to));
  };
  changed("\"bellows_subset\":1", "\"bellows_subset\":2");
  EXPECT_THAT(message_of([&] { load_subset(path); }), HasSubstr("has version 2"));
  changed("[1,2,3]", "[1,2,9]");
  EXPECT_THAT(message_of([&] { load_subset(path); }), HasSubstr("ids in [0, 9), got 9"));
  changed("[1,2,3]", "[1,2,-3]");
  EXPECT_THAT(message_of([&] { load_subset(path); }), HasSubstr("\"ids\" to be a list of ids"));
  changed("\"of\":9", "\"of\":\"9\"");
  EXPECT_THAT(message_of([&] { load_subset(path); }), HasSubstr("\"of\" to be a number of samples"));
  EXPECT_THAT(message_of([&] { load_subset(path + ".missing"); }), HasSubstr("missing"));
  changed("[1,2,3]", "[1,[2],3]");
  EXPECT_THAT(message_of([&] { load_subset(path); }), HasSubstr("to be a list of ids, found \"[1,[2],3]\"."));
  changed("[1,2,3]", std::string(100'000, '[') + std::string(100'000, ']'));
  EXPECT_THAT(message_of([&] { load_subset(path); }), HasSubstr("found deeper nesting"));
}

TEST(ActiveTest, ScoresOfKnownProbabilities) {
  const at::Tensor p = at::tensor({0.7, 0.2, 0.1, 1.0, 0.0, 0.0}).view({2, 3});
  EXPECT_NEAR(least_confidence(p)[0].item<double>(), 0.3, 1e-12);
  EXPECT_NEAR(small_margin(p)[0].item<double>(), 0.5, 1e-12);
  EXPECT_NEAR(entropy(p)[0].item<double>(), -(0.7 * std::log(0.7) + 0.2 * std::log(0.2) + 0.1 * std::log(0.1)), 1e-12);
  EXPECT_EQ(entropy(p)[1].item<double>(), 0);
  EXPECT_THAT(message_of([&] { entropy(p[0]); }), HasSubstr("probabilities [N, C]"));
}

TEST(ActiveTest, BaldAsksWherePassesDisagree) {
  // Sample 0: two passes, sure of different classes. Sample 1: both undecided, and agreed on that.
  const at::Tensor p = at::tensor({1.0, 0.0, 0.5, 0.5, 0.0, 1.0, 0.5, 0.5}).view({2, 2, 2});
  EXPECT_NEAR(bald(p)[0].item<double>(), std::log(2), 1e-12);
  EXPECT_NEAR(bald(p)[1].item<double>(), 0, 1e-12);
  EXPECT_THAT(message_of([&] { bald(p.slice(0, 0, 1)); }), HasSubstr("at least 2 passes"));
}

TEST(ActiveTest, KCenterCoversWhatIsFar) {
  // Three groups on a line; the one around 0 is labelled.
  const at::Tensor x = at::tensor({0.0, 0.1, 10.0, 10.2, -5.0, -5.1}).view({6, 1});
  EXPECT_THAT(k_center(x, {0}, 2), ElementsAre(3, 5));
  const auto all = k_center(x, {}, 6);
  EXPECT_EQ(std::set<int64_t>(all.begin(), all.end()).size(), 6U);
  EXPECT_THAT(message_of([&] { k_center(x, {0}, 6); }),
              HasSubstr("6 rows were requested, but of 6 rows, 1 are already labeled"));
  EXPECT_THAT(message_of([&] { k_center(x, {6}, 1); }), HasSubstr("rows in [0, 6), got 6"));
  const at::Tensor same = at::zeros({3, 2});  // no distance anywhere: still each row once
  EXPECT_THAT(k_center(same, {1}, 2), ::testing::UnorderedElementsAre(0, 2));
}

// Against every choice of two centres: the greedy one is at most twice as far.
TEST(ActiveTest, KCenterKeepsItsPromise) {
  const at::Tensor x = scores_of(12, 2, 3);
  const auto radius = [&](const std::vector<int64_t>& centers) {
    double worst = 0;
    for (int64_t i = 0; i < 12; ++i) {
      double nearest = kNever;
      for (const int64_t c : centers) nearest = std::min(nearest, (x[i] - x[c]).norm().item<double>());
      worst = std::max(worst, nearest);
    }
    return worst;
  };
  double best = kNever;
  for (int64_t a = 0; a < 12; ++a) {
    for (int64_t b = 0; b < a; ++b) best = std::min(best, radius({0, a, b}));
  }
  auto chosen = k_center(x, {0}, 2);
  chosen.push_back(0);
  EXPECT_LE(radius(chosen), 2 * best);
}

}  // namespace

}  // namespace bellows::data
