#include "bellows/data/order/order.h"

#include <cmath>
#include <deque>
#include <numeric>
#include <set>

#include "tests/data/order/order_support.h"

namespace bellows::data::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Le;

SourcePtr counting(int64_t n) {
  return std::make_shared<CountingSource>(n);
}

/// Σ (seen - expected)² / expected.
double chi_square(const std::vector<double>& seen, const std::vector<double>& expected) {
  double sum = 0;
  for (size_t i = 0; i < seen.size(); ++i) sum += (seen[i] - expected[i]) * (seen[i] - expected[i]) / expected[i];
  return sum;
}

/// What a chi-square variable of so many degrees of freedom exceeds once in about 10,000 times (Wilson–Hilferty).
double rare_chi_square(double freedom) {
  const double c = 2 / (9 * freedom);
  return freedom * std::pow(1 - c + 3.72 * std::sqrt(c), 3);
}

TEST(Positions, TakeFourBytesWhereTheyFit) {
  EXPECT_EQ(Positions::ascending(1'000'000).bytes(), 0);
  Positions narrow(3, int64_t{1} << 32), wide(3, (int64_t{1} << 32) + 1);
  EXPECT_EQ(narrow.bytes(), 12);
  EXPECT_EQ(wide.bytes(), 24);
  for (Positions* positions : {&narrow, &wide}) {
    for (int64_t i = 0; i < 3; ++i) positions->set(i, (int64_t{1} << 32) - 1 - i);
    positions->swap(0, 2);
    EXPECT_THAT(values(*positions), ElementsAre(4294967293, 4294967294, 4294967295));
    positions->truncate(2);
    EXPECT_THAT(values(*positions), ElementsAre(4294967293, 4294967294));
  }
  wide.set(0, int64_t{1} << 40);
  EXPECT_EQ(wide[0], int64_t{1} << 40);
}

TEST(Order, DependsOnSeedAndEpochAlone) {
  const auto source = uneven_blocks(500);
  for (const auto& [name, order] : all_orders(500)) {
    const auto first = values(order->positions(*source, 3, 1));
    EXPECT_EQ(values(order->positions(*source, 3, 1)), first) << name;
    EXPECT_EQ(static_cast<int64_t>(first.size()), order->length(*source, 1)) << name;
    if (name == "sequential") continue;
    EXPECT_NE(values(order->positions(*source, 3, 2)), first) << name;
    EXPECT_NE(values(order->positions(*source, 4, 1)), first) << name;
  }
}

TEST(Order, TakesEachSampleOnceWhereItDoesNotRepeat) {
  for (int64_t n : {1, 2, 31, 500}) {
    const auto source = uneven_blocks(n);
    for (const auto& [name, order] : all_orders(n)) {
      if (order->repeats()) continue;
      const int64_t epoch = 7;  // a curriculum has let all in
      EXPECT_EQ(sorted(values(order->positions(*source, 3, epoch))), up_to(n)) << name << " of " << n;
    }
  }
}

TEST(Order, TellsThatItWasMadeForAnotherSource) {
  for (const auto& [name, order] : all_orders(50)) {
    const bool any_source = name == "sequential" || name == "shuffled" || name == "buffered" || name == "page_shuffled";
    if (any_source) continue;
    const std::string message = error_of([&, &made = order] { made->positions(*counting(51), 0, 0); });
    EXPECT_THAT(message, HasSubstr("was created for 50 ")) << name;
    EXPECT_THAT(message, HasSubstr("the source has 51 samples (numbers)")) << name;
  }
}

TEST(ShuffledOrder, KeepsThePermutationsOfEarlierVersions) {
  EXPECT_THAT(values(shuffled()->positions(*counting(12), 5, 3)), ElementsAre(1, 4, 10, 2, 8, 7, 9, 5, 0, 11, 3, 6));
  for (int64_t epoch : {0, 1, 9}) {
    EXPECT_EQ(values(shuffled()->positions(*counting(1000), 5, epoch)),
              random_permutation(1000, mix_seed(5, static_cast<uint64_t>(epoch), 0x6f72646572)));
  }
}

TEST(ShuffledOrder, MakesAllPermutationsEquallyLikely) {
  std::map<std::vector<int64_t>, double> once, within;
  const OrderPtr all_let_in = curriculum({0, 0, 0, 0}, [](double) { return 1.0; });
  for (int64_t epoch = 0; epoch < 24000; ++epoch) {
    ++once[values(shuffled()->positions(*counting(4), 1, epoch))];
    ++within[values(all_let_in->positions(*counting(4), 1, epoch))];
  }
  for (const auto& counts : {once, within}) {
    std::vector<double> seen;
    seen.reserve(counts.size());
    for (const auto& [order, count] : counts) seen.push_back(count);
    ASSERT_EQ(seen.size(), 24u);
    EXPECT_LT(chi_square(seen, std::vector<double>(24, 1000.0)), rare_chi_square(23));
  }
}

TEST(BufferedOrder, IsWhatABufferOfThatSizeGives) {
  const auto source = uneven_blocks(300);
  for (int64_t size : {1, 2, 17, 299, 300, 5000}) {
    const uint64_t base = mix_seed(4, 2, 0x6f72646572);
    std::deque<int64_t> stream;  // the blocks in their random sequence
    for (const int64_t block : values(buffered(1)->positions(*source, 4, 2))) stream.push_back(block);
    RandomStream random(mix_seed(base, 1));
    std::deque<int64_t> buffer;
    std::vector<int64_t> expected;
    while (!stream.empty() || !buffer.empty()) {
      while (!stream.empty() && static_cast<int64_t>(buffer.size()) < size) {
        buffer.push_back(stream.front());
        stream.pop_front();
      }
      const size_t picked = random.below(buffer.size());
      expected.push_back(buffer[picked]);
      buffer[picked] = buffer.front();
      buffer.pop_front();
    }
    EXPECT_EQ(values(buffered(size)->positions(*source, 4, 2)), expected) << size;
  }
}

TEST(BufferedOrder, KeepsTheBlocksWhole) {
  const auto source = uneven_blocks(300);
  const auto order = values(buffered(1)->positions(*source, 4, 2));
  EXPECT_NE(order, up_to(300));
  size_t changes = 0;
  for (size_t i = 1; i < order.size(); ++i) changes += order[i] != order[i - 1] + 1;
  EXPECT_LT(changes, source->block_starts().size());
}

/// Blocks that a rank loads when it keeps the last `kept` that it used.
int64_t loads(const BlockSource& source, const OrderPtr& order, const Division& division, size_t kept) {
  const EpochPlan plan(source, *order, 1, 0, division);
  std::deque<int64_t> open;
  int64_t loaded = 0;
  for (int64_t step = 0; step < plan.batches(); ++step) {
    for (const int64_t position : plan.batch(step).positions) {
      const auto found = std::find(open.begin(), open.end(), source.block(position));
      loaded += found == open.end();
      if (found != open.end()) open.erase(found);
      open.push_back(source.block(position));
      if (open.size() > kept) open.pop_front();
    }
  }
  return loaded;
}

TEST(PageShuffledOrder, LetsEachRankReadItsOwnBlocksOnce) {
  const auto source = uneven_blocks(40000);
  const auto blocks = static_cast<int64_t>(source->block_starts().size());
  const PageShuffle options{.window = 3, .lanes = 16, .run = 8};
  for (int64_t world : {1, 2, 4, 8}) {
    for (int64_t batch : {8, 16}) {
      int64_t paged = 0, random = 0;
      for (int64_t rank = 0; rank < world; ++rank) {
        const Division division{batch, rank, world};
        const auto kept = static_cast<size_t>((options.window + 2) * options.lanes / world);
        paged += loads(*source, page_shuffled(options), division, kept);
        random += loads(*source, shuffled(), division, kept);
      }
      EXPECT_LE(paged, blocks + blocks / 10) << world << " ranks, batches of " << batch;
      EXPECT_GT(random, 20 * blocks);
    }
  }
}

TEST(PageShuffledOrder, MixesWhatIsFarApart) {
  const auto source = uneven_blocks(10000);
  const auto order = values(page_shuffled({.window = 4, .lanes = 8, .run = 4})->positions(*source, 1, 0));
  EXPECT_EQ(sorted(order), up_to(10000));
  for (size_t begin = 0; begin + 64 <= 9000; begin += 64) {
    std::set<int64_t> blocks;
    for (size_t i = begin; i < begin + 64; ++i) blocks.insert(source->block(order[i]));
    EXPECT_GE(blocks.size(), 12u) << begin;
  }
}

TEST(PageShuffledOrder, ShufflesASourceWithoutBlocksWholly) {
  EXPECT_EQ(values(page_shuffled()->positions(*counting(100), 5, 1)),
            values(shuffled()->positions(*counting(100), 5, 1)));
}

TEST(PageShuffledOrder, RefusesBlocksThatDoNotRise) {
  for (const std::vector<int64_t>& starts : {std::vector<int64_t>{1, 5}, {0, 5, 5}, {0, 10}, {0, 7, 3}}) {
    const BlockSource source(10, starts);
    EXPECT_THAT(error_of([&] { page_shuffled()->positions(source, 0, 0); }),
                HasSubstr("must begin at 0 and increase up to its size, 10"));
  }
  EXPECT_EQ(page_shuffled()->positions(BlockSource(0, {0, 5}), 0, 0).size(), 0);
}

TEST(WeightedOrder, DrawsInProportion) {
  const std::vector<double> weights{1, 0, 2.5, 1e-3, 40, 7};
  const auto drawn = values(weighted(weights, {.samples = 400000})->positions(*counting(6), 3, 0));
  std::vector<double> seen(6), expected;
  for (const int64_t position : drawn) ++seen[static_cast<size_t>(position)];
  for (const double weight : weights) expected.push_back(weight / 50.501 * 400000);
  EXPECT_EQ(seen[1], 0);
  seen.erase(seen.begin() + 1);
  expected.erase(expected.begin() + 1);
  EXPECT_LT(chi_square(seen, expected), rare_chi_square(4));
}

TEST(WeightedOrder, DrawsWithoutReplacementAsOneByOne) {
  const std::vector<double> weights{1, 2, 3, 4};
  const OrderPtr order = weighted(weights, {.replacement = false, .samples = 2});
  std::map<std::vector<int64_t>, double> counts;
  constexpr double rounds = 60000;
  for (int64_t epoch = 0; epoch < rounds; ++epoch) ++counts[values(order->positions(*counting(4), 8, epoch))];
  std::vector<double> seen, expected;
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 4; ++j) {
      if (i == j) continue;
      seen.push_back(counts[{static_cast<int64_t>(i), static_cast<int64_t>(j)}]);
      expected.push_back(rounds * weights[i] / 10 * weights[j] / (10 - weights[i]));
    }
  }
  EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0.0), rounds);
  EXPECT_LT(chi_square(seen, expected), rare_chi_square(11));
}

TEST(WeightedOrder, DrawsAllThatCanBeDrawnAndNothingElse) {
  std::vector<double> weights;
  weights.reserve(77);
  for (int i = 0; i < 77; ++i) weights.push_back(i % 3 == 0 ? 0 : std::pow(10.0, i % 40 - 20));
  const OrderPtr order = weighted(weights, {.replacement = false});
  const auto drawn = sorted(values(order->positions(*counting(77), 8, 0)));
  std::vector<int64_t> expected;
  for (int64_t i = 0; i < 77; ++i) {
    if (i % 3 != 0) expected.push_back(i);
  }
  EXPECT_EQ(drawn, expected);
}

TEST(WeightedOrder, TakesWeightsOfAnySize) {
  for (double scale : {1e-300, 1.0, 1e300}) {
    const OrderPtr order = weighted({3 * scale, 1 * scale, 0}, {.samples = 1000});
    EXPECT_EQ(values(order->positions(*counting(3), 1, 0)),
              values(weighted({3, 1, 0}, {.samples = 1000})->positions(*counting(3), 1, 0)));
  }
}

TEST(ClassBalancedOrder, HasEachClassOnceInEachRound) {
  const std::vector<int64_t> labels{7, 7, 7, 7, 7, -2, 7, 7, 900, 900, 7};
  const OrderPtr order = class_balanced(labels);
  EXPECT_EQ(order->length(*counting(11), 0), 12);
  std::vector<int64_t> times(11);
  for (int64_t epoch = 0; epoch < 8; ++epoch) {
    const auto positions = values(order->positions(*counting(11), 4, epoch));
    ASSERT_EQ(positions.size(), 12u);
    for (size_t i = 0; i < positions.size(); i += 3) {
      std::set<int64_t> classes;
      for (size_t k = i; k < i + 3; ++k) classes.insert(labels[static_cast<size_t>(positions[k])]);
      EXPECT_THAT(classes, ElementsAre(-2, 7, 900));
    }
    for (const int64_t position : positions) ++times[static_cast<size_t>(position)];
  }
  // 32 of each class: 4 passes of the eight 7s, 16 of the two 900s.
  EXPECT_THAT(times, ElementsAre(4, 4, 4, 4, 4, 32, 4, 4, 16, 16, 4));
}

TEST(CurriculumOrder, LetsHarderSamplesInByAndBy) {
  std::vector<double> difficulty;
  difficulty.reserve(200);
  for (int64_t i = 0; i < 200; ++i) difficulty.push_back(static_cast<double>(199 - i));
  const Pacing pacing = growing_pacing(0.2, 4);
  const OrderPtr order = curriculum(difficulty, pacing);
  for (int64_t epoch = 0; epoch < 6; ++epoch) {
    const auto positions = values(order->positions(*counting(200), 1, epoch));
    const auto end = static_cast<int64_t>(std::ceil(pacing(static_cast<double>(epoch) + 1) * 200));
    ASSERT_EQ(static_cast<int64_t>(positions.size()), end);
    for (size_t i = 0; i < positions.size(); ++i) {
      const double progress = static_cast<double>(epoch) + static_cast<double>(i) / static_cast<double>(end);
      const auto let_in =
          std::max(static_cast<int64_t>(std::ceil(pacing(progress) * 200)), static_cast<int64_t>(i) + 1);
      EXPECT_LT(199 - positions[i], let_in) << "epoch " << epoch << ", place " << i;
    }
    EXPECT_EQ(std::set<int64_t>(positions.begin(), positions.end()).size(), positions.size());
    EXPECT_EQ(199 - *std::min_element(positions.begin(), positions.end()), end - 1);
  }
}

TEST(CurriculumOrder, PacesAsAsked) {
  const Pacing line = growing_pacing(0.2, 4), root = growing_pacing(0.2, 4, true);
  EXPECT_DOUBLE_EQ(line(0), 0.2);
  EXPECT_DOUBLE_EQ(line(1), 0.4);
  EXPECT_DOUBLE_EQ(root(0), 0.2);
  EXPECT_DOUBLE_EQ(root(2), std::sqrt(0.52));
  for (const Pacing& pacing : {line, root}) {
    EXPECT_EQ(pacing(4), 1);
    EXPECT_EQ(pacing(40), 1);
  }
}

TEST(BucketedOrder, PutsSimilarLengthsTogether) {
  const auto lengths = some_numbers(5000, 400);
  const auto source = counting(5000);
  const OrderPtr order = bucketed(lengths, {.together = 32, .window = 1600});
  const Positions bucketed_sequence = order->positions(*source, 1, 0), random = shuffled()->positions(*source, 1, 0);
  EXPECT_EQ(sorted(values(bucketed_sequence)), up_to(5000));
  EXPECT_LT(padding_share(bucketed_sequence, lengths, 32), 0.04);
  EXPECT_LT(padding_share(bucketed_sequence, lengths, 8), 0.04);  // as four ranks see it
  EXPECT_GT(padding_share(random, lengths, 32), 0.4);
  EXPECT_EQ(padding_share(bucketed_sequence, std::vector<int64_t>(5000, 9), 7), 0);
  // Long and short stretches come in random sequence.
  std::vector<int64_t> longest;
  for (int64_t i = 0; i < 1600; i += 32) longest.push_back(lengths[static_cast<size_t>(bucketed_sequence[i])]);
  EXPECT_FALSE(std::is_sorted(longest.begin(), longest.end()));
}

TEST(Order, RefusesWhatMakesNoSense) {
  const auto refuses = [](const auto& make, const char* text) { EXPECT_THAT(error_of(make), HasSubstr(text)); };
  refuses([] { buffered(0); }, "buffer of at least 1 sample, got 0");
  refuses([] { page_shuffled({.window = 0}); }, "at least 1, got 0, 16 and 32");
  refuses([] { weighted({}); }, "at least one weight");
  refuses([] { weighted({0, 0}); }, "all 2 weights are 0");
  refuses([] { weighted({1, -1}); }, "got -1 at 1");
  refuses([] { weighted({1, std::nan("")}); }, "got nan at 1");
  refuses([] { weighted({1, 0, 1}, {.replacement = false, .samples = 3}); }, "only 2 samples have a weight above 0");
  refuses([] { weighted({1}, {.samples = -1}); }, "0 to 8589934592 samples per epoch, got -1");
  refuses([] { weighted({1}, {.samples = INT64_MAX}); }, "samples per epoch, got 9223372036854775807");
  refuses([] { class_balanced({}); }, "a label for each sample");
  refuses([] { class_balanced({1}, -1); }, "got -1");
  refuses([] { class_balanced({1, 2, 3, 4}, INT64_MAX / 4 + 1); }, "0 to 2147483648 samples of each of 4 classes");
  refuses([] { curriculum({1, std::nan("")}, growing_pacing(0.1, 1)); }, "difficulty of sample 1 is NaN");
  refuses([] { curriculum({1}, {}); }, "pacing function, got an empty one");
  refuses([] { curriculum({1}, [](double) { return 1.5; })->positions(*counting(1), 0, 0); }, "(0, 1], got 1.5");
  refuses([] { growing_pacing(0, 1); }, "got 0");
  refuses([] { growing_pacing(1, 0); }, "positive number of epochs, got 0");
  refuses([] { bucketed({1}, {.together = 3, .window = 10}); }, "got 10 and 3");
  refuses([] { bucketed({1, -4}); }, "sample 1 has length -4");
  refuses([] { padding_share(Positions::ascending(3), {1, 2}, 2); }, "position 2, but there are only 2 lengths");
}

}  // namespace
}  // namespace bellows::data::testing
