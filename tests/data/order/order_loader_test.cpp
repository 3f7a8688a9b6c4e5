#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include <set>

#include "bellows/data/order/labels.h"
#include "tests/data/order/order_support.h"

namespace bellows::data::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Dataset counted(int64_t n) {
  return Dataset(std::make_shared<CountingSource>(n));
}

std::vector<Batch> batches(Loader loader, int64_t epoch = 0, int64_t consumed = 0) {
  std::vector<Batch> result;
  loader.start_at(epoch, consumed);
  while (auto batch = loader.next()) result.push_back(std::move(*batch));
  return result;
}

TEST(Ranks, TakeTurnsBatchByBatch) {
  const auto zero = batches(counted(12).batch(2).distributed(0, 3).loader()),
             two = batches(counted(12).batch(2).distributed(2, 3).loader());
  ASSERT_EQ(zero.size(), 2u);
  EXPECT_THAT(zero[0].ids(), ElementsAre(0, 1));
  EXPECT_THAT(zero[1].ids(), ElementsAre(6, 7));
  EXPECT_THAT(two[1].ids(), ElementsAre(10, 11));
  EXPECT_EQ(zero[0].consumed(), 6);
  EXPECT_EQ(two[1].consumed(), 12);
}

TEST(Ranks, ShareABatchAsEquallyAsTheyCan) {
  using Ids = std::vector<int64_t>;
  std::vector<Ids> steps(3);
  for (int64_t rank = 0; rank < 3; ++rank) {
    const auto own = batches(counted(10).batch(4).distributed(rank, 3, true).loader());
    ASSERT_EQ(own.size(), 3u);
    EXPECT_EQ(own[1].consumed(), 8);
    for (size_t step = 0; step < 3; ++step) {
      EXPECT_LE(own[step].size(), 2);
      steps[step].insert(steps[step].end(), own[step].ids().begin(), own[step].ids().end());
    }
  }
  EXPECT_THAT(steps, ElementsAre(Ids{0, 1, 2, 3}, Ids{4, 5, 6, 7}, Ids{8, 9})) << "as one process would take them";
}

TEST(Ranks, ShareTheLastStepUnevenlyPaddedOrNotAtAll) {
  const auto ids = [](Remainder remainder, int64_t rank) {
    std::vector<std::vector<int64_t>> result;
    for (const Batch& batch : batches(counted(7).batch(2, remainder).distributed(rank, 2).loader()))
      result.push_back(batch.ids());
    return result;
  };
  using Ids = std::vector<int64_t>;
  EXPECT_THAT(ids(Remainder::uneven, 0), ElementsAre(Ids{0, 1}, Ids{4}));
  EXPECT_THAT(ids(Remainder::uneven, 1), ElementsAre(Ids{2, 3}, Ids{5, 6}));
  EXPECT_THAT(ids(Remainder::pad, 0), ElementsAre(Ids{0, 1}, Ids{4, 5}));
  EXPECT_THAT(ids(Remainder::pad, 1), ElementsAre(Ids{2, 3}, Ids{6, 0}));
  EXPECT_THAT(ids(Remainder::drop, 1), ElementsAre(Ids{2, 3}));
  const auto padded = batches(counted(7).batch(2, Remainder::pad).distributed(1, 2).loader());
  EXPECT_EQ(padded[0].padding(), 0);
  EXPECT_EQ(padded[1].padding(), 1);
  EXPECT_EQ(padded[1].consumed(), 7);
}

TEST(Ranks, GetBatchesWithoutRowsWhereSamplesAreFew) {
  const Dataset digits(open_webdataset({kDigits + "/test-000.tar"}));
  for (int64_t threads : {0, 2}) {
    const auto first = batches(digits.subrange(0, 2).batch(3).distributed(0, 5).threads(threads).loader());
    ASSERT_EQ(first.size(), 1u);
    EXPECT_EQ(first[0].size(), 0);
    EXPECT_EQ(first[0]["image"].sizes(), c10::IntArrayRef({0, 3, 8, 8}));
    EXPECT_EQ(first[0]["label"].sizes(), c10::IntArrayRef({0}));
    EXPECT_EQ(first[0].consumed(), 2);
    const auto last = batches(digits.subrange(0, 2).batch(3).distributed(4, 5).threads(threads).loader());
    EXPECT_THAT(last.at(0).ids(), ElementsAre(1));
  }
}

TEST(Ranks, PadWithFewSamplesOverAndOver) {
  const auto last = batches(counted(2).batch(3, Remainder::pad).distributed(1, 2).loader());
  ASSERT_EQ(last.size(), 1u);
  EXPECT_THAT(last[0].ids(), ElementsAre(1, 0, 1));
  EXPECT_EQ(last[0].padding(), 3);
}

TEST(Ranks, CountBatchesAndSamples) {
  const auto count = [](Remainder remainder) {
    const Loader loader = counted(100).batch(8, remainder).distributed(1, 3).loader();
    return std::vector<int64_t>{loader.batches_per_epoch(), loader.samples_per_epoch()};
  };
  EXPECT_THAT(count(Remainder::uneven), ElementsAre(5, 100));
  EXPECT_THAT(count(Remainder::drop), ElementsAre(4, 96));
  EXPECT_THAT(count(Remainder::pad), ElementsAre(5, 120));
}

TEST(Ranks, RefuseWorldsThatCannotBe) {
  EXPECT_THAT(error_of([] { counted(5).distributed(3, 3).loader(); }), HasSubstr("a rank in [0, 3), got 3"));
  EXPECT_THAT(error_of([] { counted(5).distributed(0, 0).loader(); }), HasSubstr("1 to 16777216 ranks, got 0"));
  EXPECT_THAT(error_of([] { counted(5).batch(2, Remainder::drop).distributed(0, 3).loader(); }),
              HasSubstr("5 samples are not enough for a full batch of 2 on each of 3 ranks"));
  EXPECT_THAT(error_of([] { counted(5).batch(INT64_MAX, Remainder::pad).loader(); }),
              HasSubstr("at most 4294967296 if batches are padded"));
  Loader loader = counted(5).batch(2).loader();
  EXPECT_THAT(error_of([&] { loader.start_at(3, 6); }),
              HasSubstr("expected 0 to 5 samples that are already consumed, got 6. Epoch 3 has 5"));
  EXPECT_THAT(error_of([&] { loader.start_at(3, -1); }), HasSubstr("got -1"));
  EXPECT_FALSE(loader.next());  // no epoch was begun
  loader.start_at(3, 5);
  EXPECT_FALSE(loader.next());
  loader.start_at(3, 3);
  const Batch batch = *loader.next();
  EXPECT_EQ(batch.index(), 1);
  EXPECT_EQ(batch.consumed(), 5);
}

TEST(Ranks, TakeLessWhereSamplesAreBadAndCountThePaddingThatIsGood) {
  const auto bad_zero = std::make_shared<CountingSource>(
      4, [](int64_t index) { TORCH_CHECK_VALUE(index != 0 && index != 2, "bad sample ", index); });
  const auto padded =
      batches(Dataset(bad_zero).batch(3, Remainder::pad).distributed(1, 2).on_bad_sample(OnBadSample::skip).loader());
  ASSERT_EQ(padded.size(), 1u);
  EXPECT_THAT(padded[0].ids(), ElementsAre(3, 1));
  EXPECT_EQ(padded[0].padding(), 1);
}

TEST(RepeatedSamples, GetRandomTransformsOfTheirOwn) {
  const SourcePtr digits = open_webdataset({kDigits + "/test-000.tar"});
  std::vector<double> one(static_cast<size_t>(digits->size()));
  one[7] = 1;
  const Dataset set = Dataset(digits).random_crop(8, 8, 4).order(weighted(one, {.samples = 40}), 5).batch(40);
  const Batch batch = *set.loader().next();
  std::set<std::string> pictures;
  for (int64_t row = 0; row < 40; ++row) {
    EXPECT_EQ(batch.ids()[static_cast<size_t>(row)], 7);
    pictures.insert(content(batch["image"][row]));
  }
  EXPECT_GT(pictures.size(), 20u);
  Loader last = set.batch(5).distributed(1, 2).threads(2).loader();  // the place in the sequence decides, not the rank
  last.start_at(0, 20);
  EXPECT_TRUE(at::equal((*last.next())["image"], batch["image"].slice(0, 25, 30)));
}

TEST(Concat, JoinsSourcesAndTheirBlocks) {
  const SourcePtr numbers = from_tensors({{"x", at::arange(10)}});
  const auto blocks = std::make_shared<BlockSource>(6, std::vector<int64_t>{0, 2});
  const SourcePtr joined = concat({numbers, subrange(numbers, 3, 3), blocks, subrange(numbers, 8, 10)});
  EXPECT_EQ(joined->size(), 18);
  EXPECT_THAT(joined->block_starts(), ElementsAre(0, 10, 12, 16));
  Loader loader = Dataset(joined).batch(18).loader();
  const Batch batch = *loader.next();
  EXPECT_EQ(batch.ids(), up_to(18));
  EXPECT_THAT(std::vector<int64_t>(batch["x"].const_data_ptr<int64_t>(), batch["x"].const_data_ptr<int64_t>() + 18),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 8, 9));
  EXPECT_THAT(error_of([] { concat({}); }), HasSubstr("at least one source"));
  EXPECT_THAT(error_of([] { concat({nullptr}); }), HasSubstr("got null"));
}

TEST(Concat, PartsKeepTheirBlocks) {
  const auto blocks = std::make_shared<BlockSource>(20, std::vector<int64_t>{0, 4, 9, 15});
  EXPECT_THAT(subrange(blocks, 0, 20)->block_starts(), ElementsAre(0, 4, 9, 15));
  EXPECT_THAT(subrange(blocks, 4, 15)->block_starts(), ElementsAre(0, 5));
  EXPECT_THAT(subrange(blocks, 5, 16)->block_starts(), ElementsAre(0, 4, 10));
  EXPECT_THAT(subrange(blocks, 10, 12)->block_starts(), ElementsAre(0));
}

TEST(Mixed, EndsWithTheFirstOrTheLast) {
  const CountingSource source(110);
  const OrderPtr first = mixed({10, 100}, {1, 3}), last = mixed({10, 100}, {1, 3}, MixEnd::last);
  EXPECT_EQ(first->length(source, 0), 40);
  EXPECT_EQ(last->length(source, 0), 134);
  std::vector<int64_t> times(110);
  for (int64_t epoch = 0; epoch < 10; ++epoch) {
    for (const int64_t position : values(first->positions(source, 1, epoch))) ++times[static_cast<size_t>(position)];
  }
  EXPECT_EQ(times, [] {  // the small one ten times, the large one in three passes
    std::vector<int64_t> expected(110, 3);
    std::fill_n(expected.begin(), 10, 10);
    return expected;
  }());
}

TEST(Mixed, RefusesWhatMakesNoSense) {
  EXPECT_THAT(error_of([] { mixed({1, 2}, {1}); }), HasSubstr("a weight for each of 2 datasets, got 1"));
  EXPECT_THAT(error_of([] { mixed({}, {}); }), HasSubstr("at least one weight"));
  EXPECT_THAT(error_of([] { mixed({3, 0}, {1, 1}); }), HasSubstr("dataset 1 has 0 samples and weight 1"));
  EXPECT_THAT(error_of([] { mixed({3, 2}, {1, 0}); }), HasSubstr("dataset 1 has 2 samples and weight 0"));
  EXPECT_THAT(error_of([] { mixed({1000, 1000}, {1, 1e-9}, MixEnd::last); }), HasSubstr("the limit is 8589934592"));
  EXPECT_THAT(error_of([] { mixed({INT64_MAX, 1}, {1, 1}, MixEnd::last); }), HasSubstr("the limit is 8589934592"));
}

TEST(Curriculum, LengthensTheEpochsOfALoader) {
  const Dataset set = counted(100).order(curriculum(std::vector<double>(100), growing_pacing(0.25, 3)), 1).batch(10);
  Loader loader = set.loader();
  for (const auto& [epoch, expected] : {std::pair<int64_t, int64_t>{0, 5}, {1, 8}, {2, 10}, {9, 10}}) {
    loader.start(epoch);
    EXPECT_EQ(loader.batches_per_epoch(), expected);
    int64_t count = 0;
    while (loader.next()) ++count;
    EXPECT_EQ(count, expected);
  }
}

}  // namespace
}  // namespace bellows::data::testing
