#include "bellows/tune/batch_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "bellows/core/error.h"
#include "tests/support/temporary_folder.h"

namespace bellows::tune {

namespace {

using ::testing::HasSubstr;

/// A machine on which a batch of B samples needs 100 + 10 B bytes, and a step takes 8 + B seconds, or 1 + B more than
/// `saturated` samples.
struct Machine {
  int64_t limit = 0;
  double prediction = 10;  ///< bytes of a sample that are predicted, instead of 10
  int64_t start = 4, most = 1000;
  std::vector<int64_t> tried{};

  BatchSearch search() {
    return search_batch_sizes(
        {.start = start,
         .most = most,
         .memory_bytes = limit,
         .process_bytes = 50,
         .predict = [this](int64_t batch) { return std::llround(prediction * static_cast<double>(batch)); },
         .measure =
             [this](int64_t batch) {
               tried.push_back(batch);
               const int64_t bytes = 100 + 10 * batch;
               const auto samples = static_cast<double>(batch);
               return BatchTrial{.batch_size = batch,
                                 .peak_bytes = bytes,
                                 .samples_per_s = bytes > limit ? 0 : samples / (8 + samples),
                                 .failure = bytes > limit ? "out of memory" : ""};
             }});
  }
};

}  // namespace

TEST(BatchSize, FindsTheLargestBatchWithFewTrials) {
  Machine machine{.limit = 5100};  // 500 samples
  const BatchSearch exact = machine.search();
  EXPECT_EQ(exact.largest, 500);
  EXPECT_LE(machine.tried.size(), 8u);
  EXPECT_EQ(exact.trials.back().predicted_bytes, 5100) << "the first trials correct the size of the process";
  for (const BatchTrial& trial : exact.trials) EXPECT_TRUE(trial.fits()) << trial.batch_size;
}

TEST(BatchSize, WrongPredictionsCostOnlyTrials) {
  for (const double prediction : {0.5, 5.0, 8.0, 12.0, 20.0, 100.0}) {
    Machine machine{.limit = 5100, .prediction = prediction};
    const BatchSearch search = machine.search();
    EXPECT_LE(search.largest, 500) << prediction;
    EXPECT_GE(search.largest, 475) << prediction;
    EXPECT_LE(machine.tried.size(), 20u) << prediction;
  }
}

TEST(BatchSize, TheFastestIsTheSmallestNearTheHighestThroughput) {
  Machine machine{.limit = 1 << 20};
  const BatchSearch search = machine.search();
  EXPECT_EQ(search.largest, 1000);
  EXPECT_EQ(search.fastest, 256);  // 256 / 264 samples per second; 128 / 136 is less than 95 % of 1000 / 1008
}

TEST(BatchSize, SmallLimits) {
  Machine one{.limit = 110}, none{.limit = 109}, start{.limit = 150, .start = 64};
  EXPECT_EQ(one.search().largest, 1);
  const BatchSearch empty = none.search();
  EXPECT_EQ(empty.largest, 0);
  EXPECT_EQ(empty.fastest, 0);
  EXPECT_EQ(empty.trials.size(), 3u);
  EXPECT_EQ(start.search().largest, 5) << "a first batch that does not fit";
  Machine data{.limit = 1 << 20, .start = 64, .most = 40};
  EXPECT_EQ(data.search().largest, 40);
}

/// Trials are shell scripts, which get the arguments of `bellows tune --measure-batch`: $1 --json $3.
class BatchProcessTest : public ::testing::Test {
 protected:
  BatchSearch search(const std::string& script, int64_t memory_bytes) const {
    std::ofstream(folder_ / "trial.sh") << "batch=$(sed -n 's/^batch_size: //p' $1)\n" << script << "\n";
    train::Recipe recipe;
    recipe.model = "mlp";
    recipe.batch_size = 4096;
    return search_batch_sizes(recipe, folder_.path(), {"/bin/sh", folder_ / "trial.sh"}, memory_bytes);
  }

  const TemporaryFolder folder_;
};

// Each sample needs 100 kB in the trial, which the plan cannot predict.
TEST_F(BatchProcessTest, TrialsThatNeedTooMuchMemoryAreKilled) {
  const BatchSearch search = this->search(
      "x=$(head -c $((batch * 100000)) /dev/zero | tr '\\0' a); sleep 0.05\n"
      "echo '{\"metrics\": {\"samples_per_s\": 1}}' > $3",
      64 << 20);
  EXPECT_GT(search.largest, 0);
  EXPECT_LE(search.largest, 671);
  const auto failed = std::ranges::find_if(search.trials, [](const BatchTrial& trial) { return !trial.fits(); });
  ASSERT_NE(failed, search.trials.end());
  EXPECT_THAT(failed->failure, HasSubstr("used more than 64.0 MiB"));
}

TEST_F(BatchProcessTest, OtherFailuresAreErrors) {
  try {
    search("echo 'bellows: the data are damaged.' >&2; exit 1", 1 << 30);
    ADD_FAILURE();
  } catch (const c10::Error& error) {
    EXPECT_THAT(user_message(error), HasSubstr("failed, but not for lack of memory: the data are damaged."));
  }
}

TEST(BatchSize, MeasuresStepsWithAndWithoutData) {
  train::Recipe recipe;
  recipe.model = "mlp";
  recipe.num_workers = 0;
  EXPECT_THAT(measured_batch_json(recipe), HasSubstr("\"samples_per_s\":"));
  recipe.data = BELLOWS_SOURCE_DIR "/data/digits";
  EXPECT_THAT(measured_batch_json(recipe), HasSubstr("\"samples_per_s\":"));
}

}  // namespace bellows::tune
