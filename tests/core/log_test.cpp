#include "bellows/core/log.h"

#include <gtest/gtest.h>

#include <thread>

#include "bellows/core/progress.h"

namespace bellows {

namespace {

struct RecordingSink final : LogSink {
  void write(LogLevel level, std::string_view message) override { lines.emplace_back(level, message); }
  void progress(const ProgressState& state) override {
    last = state;
    detail = state.detail;
    ++reports;
  }
  std::vector<std::pair<LogLevel, std::string>> lines;
  ProgressState last;
  std::string detail;
  int reports = 0;
};

struct LogTest : testing::Test {
  std::shared_ptr<RecordingSink> sink = std::make_shared<RecordingSink>();
  std::shared_ptr<LogSink> before = set_log_sink(sink);
  ~LogTest() override { set_log_sink(before); }
};

}  // namespace

TEST_F(LogTest, SinkIsReplaceableAndFiltersByLevel) {
  log_info("read ", 3, " shards");
  log_debug("too fine");
  log_warn("careful");
  ASSERT_EQ(sink->lines.size(), 2U);
  EXPECT_EQ(sink->lines[0].second, "read 3 shards");
  EXPECT_EQ(sink->lines[1].first, LogLevel::warn);
  const LogLevel level = set_log_level(LogLevel::off);
  log_error("nobody hears");
  EXPECT_EQ(set_log_level(level), LogLevel::off);
  EXPECT_EQ(sink->lines.size(), 2U);
}

TEST_F(LogTest, NullSinkSilences) {
  set_log_sink(nullptr);
  log_error("into the void");
  report_progress({});
  EXPECT_TRUE(sink->lines.empty());
}

TEST_F(LogTest, ThreadsDoNotMixLines) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 200; ++i) log_info("one whole line");
    });
  }
  for (auto& thread : threads) thread.join();
  ASSERT_EQ(sink->lines.size(), 800U);
  for (const auto& [level, text] : sink->lines) ASSERT_EQ(text, "one whole line");
}

TEST_F(LogTest, ProgressReportsRateAndEnd) {
  {
    Progress progress("epoch 1", 100, "samples");
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    progress.advance(40, "loss 0.5");
    EXPECT_EQ(sink->last.done, 40);
    EXPECT_GT(sink->last.rate, 0);
    EXPECT_GT(sink->last.eta_s, 0);
    EXPECT_EQ(sink->detail, "loss 0.5");
    const int reports = sink->reports;
    for (int i = 0; i < 10; ++i) progress.advance(1);
    EXPECT_LE(sink->reports, reports + 2) << "at most ten reports a second";
  }
  EXPECT_TRUE(sink->last.finished);
  EXPECT_EQ(sink->last.done, 50);
}

}  // namespace bellows
