#include "bellows/data/loader/report.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "bellows/data/loader/thread_budget.h"
#include "bellows/io/bytes.h"
#include "tests/data/slow_source.h"

namespace bellows::data::testing {
namespace {

using ::testing::HasSubstr;

TEST(DurationBins, KeepOrderAndQuantilesToTwelvePercent) {
  size_t before = 0;
  for (int64_t ns = 1; ns < (int64_t{1} << 42); ns += 1 + ns / 7) {
    const size_t bin = duration_bin(ns);
    ASSERT_LT(bin, kDurationBins);
    ASSERT_GE(bin, before);
    before = bin;
    DurationBins bins{};
    bins[bin] = 3;
    if (ns < (int64_t{1} << 40)) {
      ASSERT_NEAR(duration_quantile_ns(bins, 0.95), static_cast<double>(ns), 0.126 * static_cast<double>(ns) + 1);
    }
  }
  EXPECT_EQ(duration_quantile_ns({}, 0.5), 0);
  DurationBins bins{};
  for (int i = 0; i < 90; ++i) ++bins[duration_bin(1000)];
  for (int i = 0; i < 10; ++i) ++bins[duration_bin(1'000'000)];
  EXPECT_NEAR(duration_quantile_ns(bins, 0.5), 1000, 130);
  EXPECT_NEAR(duration_quantile_ns(bins, 0.95), 1e6, 1.3e5);
}

TEST(StageClock, CountsShortSamplesAsManyAsTheyAre) {
  StageClock clock;
  for (int slice = 0; slice < 100; ++slice) {
    clock.begin_slice();
    for (int i = 0; i < 16; ++i) {
      clock.begin_sample();
      clock.enter(LoadStage::write);
      clock.end_sample();
    }
    clock.end_slice(16);
  }
  StageSums sums;
  clock.add_to(sums);
  EXPECT_EQ(sums.samples, 1600);
  EXPECT_NEAR(static_cast<double>(sums.stages[0].samples), 1600, 80);
  EXPECT_NEAR(static_cast<double>(sums.stages[3].samples), 1600, 80);
  EXPECT_EQ(sums.stages[1].samples, 0);
}

/// Nanoseconds a sample that measuring takes; the least of several times.
double clock_cost(int64_t samples_a_slice, int64_t slice_ns) {
  double least = 1e9;
  for (int repeat = 0; repeat < 20; ++repeat) {
    StageClock clock;
    int64_t spent = 0;
    for (int slice = 0; slice < 20; ++slice) {
      const int64_t end = now_ns() + slice_ns;
      clock.begin_slice();
      const int64_t begin = now_ns();
      for (int64_t i = 0; i < samples_a_slice; ++i) {
        clock.begin_sample();
        clock.enter(LoadStage::decode);
        clock.enter(LoadStage::transform);
        clock.enter(LoadStage::decode);
        clock.enter(LoadStage::write);
        clock.end_sample();
      }
      spent += now_ns() - begin;
      while (now_ns() < end) {
      }
      clock.end_slice(samples_a_slice);
    }
    least = std::min(least, static_cast<double>(spent) / static_cast<double>(20 * samples_a_slice));
  }
  return least;
}

TEST(StageClock, CostsLittle) {
  const double of_short = clock_cost(8, 0), of_long = clock_cost(8, 8 * 60'000);
  RecordProperty("ns_a_short_sample", std::to_string(of_short));
  RecordProperty("ns_a_long_sample", std::to_string(of_long));
  EXPECT_LT(of_long, 5000);  // 0.3 µs where nothing else runs and no sanitizer looks on: 0.6 % of 50 µs
  EXPECT_LT(of_short, of_long);
}

Dataset pictures(int64_t side) {
  const at::Tensor noise =
      at::arange(side * side * 3, at::kInt).mul(2654435761 & 0x7fffffff).remainder(253).to(at::kByte);
  static TemporaryFolder folder;
  const std::string png = std::string(io::as_text(io::encode_png(noise.view({side, side, 3}))));
  std::vector<Member> members;
  members.reserve(48);
  for (int i = 0; i < 48; ++i) members.push_back({c10::str(i, ".png"), png});
  write_shard(folder / c10::str(side, ".tar"), members);
  return open(folder / c10::str(side, ".tar")).batch(8);
}

// ---- the advice, each situation brought about for real; what sleeps needs no core, so that a busy machine changes
// nothing

TEST(Advice, AModelThatTakesLongerIsTheBottleneck) {
  Loader loader = Dataset(sleeping_numbers(160, 50)).batch(8).threads(2).prefetch(4).loader();
  run_epoch(loader, 0, 4000);
  const LoaderReport report = loader.report();
  EXPECT_EQ(report.advice().remedy, Remedy::none) << report.to_string();
  EXPECT_GT(report.ready_s, 0.05) << "batches wait for the model";
  EXPECT_GT(report.mean_ready, 1);
}

TEST(Advice, ReadsThatWaitNeedMoreThreads) {
  Loader loader = Dataset(sleeping_numbers(200, 1000)).batch(16).threads(1).prefetch(4).loader();
  run_epoch(loader, 0);
  const LoaderReport report = loader.report();
  const Advice advice = report.advice();
  EXPECT_EQ(advice.remedy, Remedy::more_threads) << report.to_string();
  EXPECT_GT(advice.gain, 1.5);
  EXPECT_THAT(advice.sentence, HasSubstr("instead of 1: the worker threads wait"));
  EXPECT_NEAR(report[LoadStage::read].mean_us, 1150, 400);
  EXPECT_LT(report.cpu_share, 0.3);
  EXPECT_GT(report.blocked_share, 0.7);
}

TEST(Advice, ReadsThatWaitOnManyThreadsNeedFasterStorage) {
  const int64_t many = 4 * usable_cores();
  Loader loader = Dataset(sleeping_numbers(40 * many, 4000)).batch(8 * many).threads(many).prefetch(4).loader();
  run_epoch(loader, 0);
  EXPECT_EQ(loader.report().advice().remedy, Remedy::faster_storage) << loader.report().to_string();
}

TEST(Advice, SlowStepsOfTheUserAreNamed) {
  const int64_t many = 4 * usable_cores();
  const at::Tensor images = at::zeros({40 * many, 4, 4, 3}, at::kByte);
  const Dataset set = Dataset(from_tensors({{"image", images}}))
                          .transform({.run =
                                          [](const ImageView& image, Scratch&, RandomStream&) {
                                            nap_us(3000);
                                            return image;
                                          }})
                          .batch(8 * many)
                          .prefetch(4);
  Loader loader = set.threads(many).loader();
  run_epoch(loader, 0);
  const LoaderReport report = loader.report();
  EXPECT_EQ(report.advice().remedy, Remedy::cheaper_transform) << report.to_string();
  EXPECT_GT(report[LoadStage::transform].total_s, 10 * report[LoadStage::decode].total_s);
}

TEST(Advice, WorkInNextNeedsAThread) {
  Loader loader = Dataset(sleeping_numbers(64, 1000)).batch(8).threads(0).loader();
  run_epoch(loader, 0, 8000);
  const Advice advice = loader.report().advice();
  EXPECT_EQ(advice.remedy, Remedy::more_threads) << loader.report().to_string();
  EXPECT_THAT(advice.sentence, HasSubstr("without worker threads, the model waits"));
  EXPECT_NEAR(advice.gain, 2, 0.5);
}

TEST(Advice, AModelThatTakesBatchesInBurstsNeedsABiggerPrefetch) {
  Loader loader = Dataset(sleeping_numbers(480, 1000)).batch(4).threads(1).prefetch(1).loader();
  loader.start(0);
  for (int64_t i = 0; loader.next(); ++i) {
    if (i % 4 == 3) nap_us(60'000);
  }
  const LoaderReport report = loader.report();
  EXPECT_EQ(report.advice().remedy, Remedy::bigger_prefetch) << report.to_string();
  EXPECT_THAT(report.advice().sentence, HasSubstr("Prefetch 4 batches instead of 1"));
}

TEST(Advice, DecodingThatFitsIntoMemoryIsCachedElsePacked) {
  Loader loader = pictures(256).threads(1).loader();
  for (int64_t epoch = 0; epoch < 2; ++epoch) run_epoch(loader, epoch);
  LoaderReport report = loader.report();
  EXPECT_EQ(report.picture_bytes, 256 * 256 * 3);
  EXPECT_GT(report[LoadStage::decode].total_s, report[LoadStage::read].total_s);
  report.stages[static_cast<size_t>(LoadStage::write)].total_s = 0;  // new memory on a busy machine costs what it likes
  report.blocked_share = 0;
  report.process_cpu_s = report.seconds * static_cast<double>(report.cores);  // no core is free
  report.memory_available_bytes = int64_t{1} << 30;
  EXPECT_EQ(report.advice().remedy, Remedy::cache_decoded) << report.to_string();
  report.memory_available_bytes = 1 << 20;
  EXPECT_EQ(report.advice().remedy, Remedy::pack) << report.to_string();
}

/// A run of a second with ten batches of ten in which two workers were never idle.
LoaderReport a_report() {
  LoaderReport report;
  report.seconds = 1;
  report.epochs = 1;
  report.batches = 10;
  report.samples = 100;
  report.wait_s = 0.8;
  report.model_s = 0.2;
  report.prefetch = 4;
  report.threads = 2;
  report.mean_threads = 2;
  report.busy_s = 2.6;
  report.cores = 2;
  report.process_cpu_s = 2;
  report.source_samples = 100;
  return report;
}

TEST(Advice, ReadsThatComputeAreToldFromReadsThatWait) {
  LoaderReport report = a_report();
  report.stages[0].total_s = 2.4;
  report.stages[1].total_s = 0.2;
  EXPECT_EQ(report.advice().remedy, Remedy::faster_read) << report.to_string();
  report.blocked_share = 0.9;
  report.threads = 8;
  report.mean_threads = 8;
  report.busy_s = 8.6;
  EXPECT_EQ(report.advice().remedy, Remedy::faster_storage) << report.to_string();
}

TEST(Advice, FreeCoresAreCounted) {
  LoaderReport report = a_report();
  report.cores = 8;
  report.stages[1].total_s = 2.6;
  const Advice advice = report.advice();
  EXPECT_EQ(advice.remedy, Remedy::more_threads);
  EXPECT_THAT(advice.sentence, HasSubstr("Use 8 threads instead of 2: 6.0 of 8 cores are free"));
  EXPECT_GT(advice.gain, 2.5);
  report.auto_threads = true;
  EXPECT_NE(report.advice().remedy, Remedy::more_threads) << "they see to that themselves";
}

TEST(Advice, SaysWhenItDoesNotKnow) {
  EXPECT_EQ(LoaderReport{}.advice().remedy, Remedy::unknown);
  EXPECT_THAT(LoaderReport{}.advice().sentence, HasSubstr("The measurement is too short for advice"));
}

TEST(LoaderReport, AddsUpToTheRun) {
  Loader loader = Dataset(sleeping_numbers(120, 200)).batch(10).threads(2).prefetch(3).loader();
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    run_epoch(loader, epoch, 500);
    nap_us(30'000);  // what lies between epochs is not the loader's
  }
  const LoaderReport report = loader.report();
  EXPECT_EQ(report.epochs, 3);
  EXPECT_EQ(report.batches, 36);
  EXPECT_EQ(report.samples, 360);
  EXPECT_NEAR(report.model_s + report.wait_s, report.seconds, 0.1 * report.seconds);
  EXPECT_GE(report.model_s, 36 * 0.0005);
  EXPECT_LE(report.first_wait_s, report.wait_s);
  EXPECT_GT(report[LoadStage::read].total_s, 360 * 0.0002);
  EXPECT_NEAR(report.busy_s, report[LoadStage::read].total_s, 0.1 * report.busy_s);
  EXPECT_GE(report[LoadStage::read].p95_us, 0.8 * report[LoadStage::read].mean_us);
  EXPECT_GT(report[LoadStage::hand_over].total_s, 0);
  EXPECT_GT(report.queue.size(), 10u);
  EXPECT_NEAR(loader.wait_share(), report.wait_share(), 0.3);
}

TEST(LoaderReport, FitsEightyColumnsAndReadsAsJson) {
  LoaderReport report = a_report();
  report.auto_threads = true;
  report.seconds = 123456;
  report.samples = 987654321012;
  report.skipped = 1234567;
  report.retries = 1234567;
  report.skipped_in.fill(1234567);
  for (StageTime& stage : report.stages) stage = {123456.7, 1.5e6, 2.5e6};
  for (int i = 0; i < 128; ++i) report.queue.push_back({0.1 * i, static_cast<double>(i % 5)});
  std::istringstream lines(report.to_string());
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 79u) << line;
  EXPECT_THAT(report.to_string(), HasSubstr("decode"));
  const auto json = nlohmann::json::parse(report.to_json());
  EXPECT_EQ(json["stages"]["decode"]["total_s"], 123456.7);
  EXPECT_EQ(json["advice"]["sentence"], report.advice().sentence);
  EXPECT_EQ(json["queue"].size(), 128u);
  EXPECT_TRUE(nlohmann::json::parse(LoaderReport{}.to_json()).contains("advice"));
}

}  // namespace
}  // namespace bellows::data::testing
