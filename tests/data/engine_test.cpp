#include <ATen/ops/arange.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "bellows/core/log.h"
#include "bellows/data/formats/shard_files.h"
#include "bellows/data/loader/thread_budget.h"
#include "bellows/io/archives/compress.h"
#include "tests/data/allocation_count.h"
#include "tests/data/slow_source.h"
#include "tests/support/errors.h"

namespace bellows::data::testing {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Quiet {
 public:
  Quiet() : before_(set_log_sink(nullptr)) {}
  ~Quiet() { set_log_sink(before_); }

 private:
  std::shared_ptr<LogSink> before_;
};

// ---- threads that adjust themselves

TEST(AutoThreads, GiveTheSameBitsWhileTheyComeAndGo) {
  const auto uneven = [](int64_t index) { nap_us(index % 7 == 0 ? 900 : 100); };
  const auto source = std::make_shared<CountingSource>(600, uneven);
  LoaderOptions options{
      .batch_size = 7, .order = shuffled(), .seed = 5, .threads = LoaderOptions::kAuto, .prefetch = 6};
  Loader loader(source, {}, options);
  options.threads = 0;
  Loader reference(std::make_shared<CountingSource>(600), {}, options);
  std::minstd_rand random(3);
  std::set<int64_t> seen;
  for (int64_t epoch = 0; epoch < 6; ++epoch) {
    loader.start(epoch);
    reference.start(epoch);
    while (const auto expected = reference.next()) {
      const auto batch = loader.next();
      ASSERT_TRUE(batch);
      ASSERT_EQ(fingerprint(*batch), fingerprint(*expected));
      if (batch->index() % 8 == 0) seen.insert(loader.report().threads);
      if (epoch % 2 == 1) nap_us(static_cast<int64_t>(random() % 8000));  // the model is slow: fewer will do
    }
    EXPECT_FALSE(loader.next());
  }
  EXPECT_GT(*seen.rbegin(), 1) << "reads wait, so more threads help";
  EXPECT_TRUE(loader.report().auto_threads);
  EXPECT_GT(loader.report().mean_threads, 1);
}

TEST(AutoThreads, ReachMoreThanCoresWhereReadsWait) {
  Loader loader(sleeping_numbers(6000, 500), {}, {.batch_size = 64, .threads = LoaderOptions::kAuto, .prefetch = 8});
  run_epoch(loader, 0);
  EXPECT_GT(loader.report().threads, usable_cores()) << loader.report().to_string();
}

// ---- reading ahead

/// A remote shard: a read waits 3 ms unless the sample was announced and has arrived.
class RemoteSource final : public Source {
 public:
  using Source::read;
  explicit RemoteSource(int64_t size) : here_(static_cast<size_t>(size)), inner_(size) {}
  int64_t size() const override { return inner_.size(); }
  void read(int64_t index, Sample& sample) const override {
    if (!here_[static_cast<size_t>(index)].exchange(true)) {
      nap_us(3000);
      ++late;
    }
    inner_.read(index, sample);
  }
  bool prefetch(int64_t index) const override {
    ++announced;
    if (here_[static_cast<size_t>(index)]) return true;
    nap_us(1000);
    here_[static_cast<size_t>(index)] = true;
    return true;
  }
  std::string describe() const override { return "remote numbers"; }

  void all_here() const {
    for (auto& here : here_) here = true;
  }

  mutable std::atomic<int64_t> announced{0}, late{0};

 private:
  mutable std::vector<std::atomic<bool>> here_;
  CountingSource inner_;
};

TEST(ReadAhead, AnnouncesWhatComesSoThatReadsDoNotWait) {
  const auto source = std::make_shared<RemoteSource>(400);
  Loader loader(source, {}, {.batch_size = 10, .threads = 1, .prefetch = 4});
  run_epoch(loader, 0, 12'000);
  EXPECT_GT(source->announced, 300);
  EXPECT_LT(source->late, 120) << "of 400; those of the first batches cannot have arrived";
  EXPECT_GT(loader.report().read_ahead_s, 0.2);
}

TEST(ReadAhead, ThinsOutWhereNothingHasToBeWaitedFor) {
  const auto source = std::make_shared<RemoteSource>(4000);
  Loader loader(source, {}, {.batch_size = 100, .threads = 1, .prefetch = 2});
  source->all_here();
  run_epoch(loader, 0, 500);
  EXPECT_LT(source->announced, 1200);
  EXPECT_EQ(source->late, 0);
}

TEST(ReadAhead, GoesThroughSubsetsAndDoesNotOutliveTheLoader) {
  const auto source = std::make_shared<RemoteSource>(100);
  {
    Loader loader(subset(subrange(source, 50, 100), {3, 1, 4, 1, 5, 9, 2, 6}), {}, {.batch_size = 2, .prefetch = 2});
    loader.next();
  }
  const int64_t announced = source->announced;
  EXPECT_GT(announced, 0);
  nap_us(20'000);
  EXPECT_EQ(source->announced, announced);
}

// ---- memory

TEST(SteadyState, WorkersDoNotAllocateAndNextOnlyForTheBatchItHandsOut) {
  const at::Tensor x = at::arange(1 << 16, at::kFloat).view({1 << 14, 4}), y = at::arange(1 << 14);
  for (const int64_t batch_size : {16, 128}) {
    Loader loader =
        Dataset(from_tensors({{"x", x}, {"y", y}})).shuffle(1).batch(batch_size).threads(2).prefetch(3).loader();
    loader.start(0);
    constexpr int64_t batches = 16;
    int64_t by_workers = -1, by_next = 0;
    // A worker allocates with its first sample, and on a busy machine it may come to that late.
    for (int window = 0; window < 8 && by_workers != 0; ++window) {
      const int64_t all = test::all_allocations(), own = test::own_allocations();
      for (int64_t i = 0; i < batches; ++i) ASSERT_TRUE(loader.next());
      by_next = test::own_allocations() - own;
      by_workers = test::all_allocations() - all - by_next;
    }
    EXPECT_EQ(by_workers, 0);
    // Two tensors: storage and tensor each; their list, the ids, the plan's positions.
    EXPECT_LE(by_next, batches * 12) << static_cast<double>(by_next) / batches << " a batch of " << batch_size;
  }
}

// ---- samples that cannot be used

LoaderOptions in_order(int64_t threads) {
  return {.batch_size = 10, .on_bad_sample = OnBadSample::skip, .threads = threads, .prefetch = 3};
}

TEST(BadSamples, WhateverASourceThrowsIsSkippedOrPassedOn) {
  const Quiet quiet;
  const auto source = std::make_shared<CountingSource>(100, [](int64_t index) {
    if (index % 10 == 1) throw 42;
    if (index % 10 == 2) throw std::runtime_error("no disk");
    if (index % 10 == 3) throw std::string("no exception at all");
  });
  for (const int64_t threads : {0, 3}) {
    Loader loader(source, {}, in_order(threads));
    int64_t samples = 0;
    for (const Batch& batch : loader.epoch(0)) samples += batch.size();
    EXPECT_EQ(samples, 70);
    EXPECT_EQ(loader.skipped(), 30);
    EXPECT_EQ(loader.report().skipped, 30);
    EXPECT_EQ(loader.report().skipped_in[static_cast<size_t>(LoadStage::read)], 30);
  }
  LoaderOptions fails = in_order(2);
  fails.on_bad_sample = OnBadSample::fail;
  Loader loader(source, {}, fails);
  for (int64_t batch = 0; batch < 10; ++batch) EXPECT_THROW(loader.next(), int);
  EXPECT_FALSE(loader.next());
}

TEST(BadSamples, AreCountedByWhatFailed) {
  const Quiet quiet;
  TemporaryFolder folder;
  std::vector<Member> members;
  members.reserve(30);
  for (int i = 0; i < 30; ++i) {
    members.push_back({c10::str("s", i, ".png"), i % 10 == 4 ? "no picture" : a_png()});
    members.push_back({c10::str("s", i, ".cls"), i % 10 == 5 ? "no label" : "1"});
  }
  write_shard(folder / "x.tar", members);
  const Dataset set = open(folder / "x.tar").decode("gray").batch(8).on_bad_sample(OnBadSample::skip);
  Loader loader = set.threads(0)
                      .transform({.run =
                                      [calls = std::make_shared<std::atomic<int>>()](const ImageView& image, Scratch&,
                                                                                     RandomStream&) {
                                        TORCH_CHECK_VALUE(++*calls != 20, "a step that fails once");
                                        return image;
                                      }})
                      .loader();
  run_epoch(loader, 0);
  const LoaderReport report = loader.report();
  EXPECT_EQ(report.skipped_in[static_cast<size_t>(LoadStage::decode)], 6);
  EXPECT_EQ(report.skipped_in[static_cast<size_t>(LoadStage::transform)], 1);
  EXPECT_EQ(report.skipped, 7);
  EXPECT_THAT(report.to_string(), HasSubstr("Skipped: 7 samples (6 at decode, 1 at transform)"));
}

TEST(Retries, GetOverWhatPasses) {
  std::array<std::atomic<int>, 60> reads{};
  const auto source = std::make_shared<CountingSource>(60, [&](int64_t index) {
    if (index % 20 == 7 && reads[static_cast<size_t>(index)]++ < 2) throw std::runtime_error("timed out");
  });
  LoaderOptions options = in_order(2);
  options.on_bad_sample = OnBadSample::fail;
  options.retries = 2;
  Loader loader(source, {}, options);
  int64_t samples = 0;
  for (const Batch& batch : loader.epoch(0)) samples += batch.size();
  EXPECT_EQ(samples, 60);
  EXPECT_EQ(loader.report().retries, 6);
  EXPECT_EQ(loader.skipped(), 0);
}

TEST(Retries, EndAndThenThePolicyDecides) {
  const Quiet quiet;
  std::atomic<int> reads{0};
  const auto source = std::make_shared<CountingSource>(20, [&](int64_t index) {
    if (index != 5) return;
    ++reads;
    throw std::runtime_error("gone");
  });
  LoaderOptions options = in_order(1);
  options.retries = 3;
  Loader skips(source, {}, options);
  run_epoch(skips, 0);
  EXPECT_EQ(skips.skipped(), 1);
  EXPECT_EQ(reads, 4);
  options.on_bad_sample = OnBadSample::fail;
  Loader fails(source, {}, options);
  EXPECT_THROW(fails.next(), std::runtime_error);
  EXPECT_EQ(fails.next()->index(), 1);
}

TEST(Retries, DoNotHoldUpTheEnd) {
  const auto source = std::make_shared<CountingSource>(200, [&](int64_t index) {
    if (index > 20) throw std::runtime_error("gone");
  });
  LoaderOptions options = in_order(3);
  options.retries = 1000;
  const auto begin = Clock::now();
  {
    Loader loader(source, {}, options);
    loader.next();
    loader.next();
    nap_us(100'000);  // the workers are at their third attempt
  }
  EXPECT_LT(seconds_since(begin), 5);
}

TEST(TheEnd, WaitsForReadsInProgressAndNoLonger) {
  std::atomic<int> reading{0};
  const auto source = std::make_shared<CountingSource>(1000, [&](int64_t index) {
    if (index < 10) return;
    ++reading;
    nap_us(300'000);
    --reading;
  });
  Loader* loader = new Loader(source, {}, in_order(4));
  loader->next();
  while (reading < 4) nap_us(100);
  const auto begin = Clock::now();
  delete loader;
  EXPECT_EQ(reading, 0);
  EXPECT_LT(seconds_since(begin), 2) << "not for the 30 samples of the batches ahead";
}

/// Two shards of 200 samples each.
class VanishingShard : public ::testing::Test {
 protected:
  VanishingShard() : scope_(io::FileCacheOptions{.folder = folder_ / "cache"}) {
    std::vector<Member> members;
    members.reserve(200);
    for (int i = 0; i < 200; ++i) members.push_back({c10::str(i, ".cls"), "3"});
    for (const char* name : {"a.tar", "b.tar"}) write_shard(folder_ / name, members);
    const std::string plain = read_text_file(b_);
    write_text_file(packed_b_, io::as_text(io::compress(io::as_bytes(plain), io::Codec::parse("gz"))));
  }
  TemporaryFolder folder_;
  const std::string a_ = folder_ / "a.tar", b_ = folder_ / "b.tar", packed_b_ = folder_ / "b.tar.gz";

 private:
  Quiet quiet_;
  ShardFiles::CacheScope scope_;
};

TEST_F(VanishingShard, IsReadToItsEndWhereItIsMapped) {
  Loader loader(open_webdataset({a_, b_}), {}, in_order(2));
  int64_t samples = loader.next()->size();
  std::filesystem::remove(b_);
  while (const auto batch = loader.next()) samples += batch->size();
  EXPECT_EQ(samples, 400);
}

TEST_F(VanishingShard, FailsByNameOrIsSkippedWhereItIsNot) {
  open_webdataset({a_, packed_b_});  // keeps its index, by which it is opened from then on
  const SourcePtr source = open_webdataset({a_, packed_b_});
  std::filesystem::remove(packed_b_);
  LoaderOptions options = in_order(2);
  options.on_bad_sample = OnBadSample::fail;
  Loader fails(source, {}, options);
  EXPECT_THAT(message_of([&] { run_epoch(fails, 0); }), HasSubstr("cannot open " + packed_b_));
  options.on_bad_sample = OnBadSample::skip;
  Loader skips(source, {}, options);
  int64_t samples = 0;
  while (const auto batch = skips.next()) samples += batch->size();
  EXPECT_EQ(samples, 200);
  EXPECT_EQ(skips.skipped(), 200);
}

// ---- traces

TEST(LoaderTrace, ShowsWorkersStagesAndTheQueue) {
  const auto writer = std::make_shared<TraceWriter>();
  Loader loader = Dataset(sleeping_numbers(200, 300)).batch(20).threads(2).prefetch(3).loader();
  loader.trace(writer);
  run_epoch(loader, 0);
  loader.trace(nullptr);
  const size_t size = writer->size();
  run_epoch(loader, 1);
  EXPECT_LE(writer->size(), size + 2 * 40) << "what was begun may end";
  std::set<std::string> names;
  std::set<uint64_t> rows;
  const auto json = nlohmann::json::parse(writer->to_json());
  for (const auto& event : json["traceEvents"]) {
    names.insert(event["name"].get<std::string>());
    if (event["ph"] == "X") rows.insert(event["tid"].get<uint64_t>());
  }
  for (const char* name : {"read", "decode", "write", "batch 0", "batch 9", "next", "loader: batches ready"})
    EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_GE(rows.size(), 2u);
}

}  // namespace
}  // namespace bellows::data::testing
