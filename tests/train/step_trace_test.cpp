#include "bellows/train/run/step_trace.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>
#include <nlohmann/json.hpp>

#include "bellows/system/trace_request.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

std::string ranges_text(std::string_view text) {
  std::string result;
  for (const StepRange& range : parse_steps(text)) result += c10::str(range.first, "-", range.last, ";");
  return result;
}

/// How many events each name of a trace has.
std::map<std::string, int> counts_of(const std::string& path) {
  std::map<std::string, int> counts;
  const Json trace = Json::parse(read_bytes(path));
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") ++counts[event.at("name").get<std::string>()];
  }
  return counts;
}

/// Steps as a train loop takes them, each with one phase and one product.
void take_steps(StepTrace& trace, int64_t first, int64_t last) {
  const at::Tensor a = torch::ones({4, 4});
  for (int64_t step = first; step <= last; ++step) {
    trace.before(step);
    {
      const inspect::TraceScope scope("forward");
      at::mm(a, a);
    }
    trace.after(step);
  }
}

}  // namespace

TEST(ParseSteps, UnderstandsRangesAndSingleSteps) {
  EXPECT_EQ(ranges_text(""), "");
  EXPECT_EQ(ranges_text("10-12,50"), "10-12;50-50;");
  EXPECT_EQ(ranges_text(" 50 , 1 - 2 "), "1-2;50-50;");
}

TEST(ParseSteps, SaysWhatIsWrong) {
  for (const char* text : {"x", "1-", "-3", "0", "1,,2", "1-2-3", "1.5", "99999999999999999999"}) {
    EXPECT_THAT(error_of([&] { parse_steps(text); }), HasSubstr("such as \"10-12,50\"")) << text;
  }
  EXPECT_THAT(error_of([] { parse_steps("12-10"); }), HasSubstr("Write 10-12"));
  EXPECT_THAT(error_of([] { parse_steps("1-5,5-6"); }), HasSubstr("step 5 is in two ranges"));
  EXPECT_THAT(error_of([] { parse_steps("1-2000"); }), HasSubstr("1000 steps"));
}

TEST(StepTrace, WritesTheChosenStepsOnly) {
  const TemporaryFolder folder;
  const CapturedLog log;
  StepTrace trace("2-3,5", folder / "run");
  take_steps(trace, 1, 6);
  EXPECT_FALSE(trace.active());
  const auto first = counts_of(folder / "run/trace-2-3.json"), second = counts_of(folder / "run/trace-5-5.json");
  EXPECT_EQ(first.at("aten::mm"), 2);
  EXPECT_EQ(first.at("forward"), 2);
  EXPECT_EQ(first.at("step 2"), 1);
  EXPECT_EQ(first.at("step 3"), 1);
  EXPECT_EQ(first.count("step 4"), 0U);
  EXPECT_EQ(second.at("aten::mm"), 1);
  EXPECT_THAT(log.text(), HasSubstr("trace-5-5.json"));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "run")) files += entry.is_regular_file();
  EXPECT_EQ(files, 2);
}

TEST(StepTrace, WritesTheStepsAfterARequest) {
  const TemporaryFolder folder;
  const CapturedLog log;
  StepTrace trace("", folder.path());
  take_steps(trace, 1, 2);
  request_trace(2);
  take_steps(trace, 3, 6);
  EXPECT_FALSE(trace.active());
  EXPECT_EQ(counts_of(folder / "trace-3-4.json").at("aten::mm"), 2);
  EXPECT_THAT(log.text(), HasSubstr("trace: recording steps 3 to 4."));
  EXPECT_EQ(take_trace_request(), 0);
}

TEST(StepTrace, ARequestWithinARangeDoesNotShortenIt) {
  const TemporaryFolder folder;
  StepTrace trace("2-5", folder.path());
  take_steps(trace, 1, 2);
  request_trace(1);
  take_steps(trace, 3, 6);
  EXPECT_EQ(counts_of(folder / "trace-2-3.json").at("aten::mm"), 2);
  EXPECT_EQ(counts_of(folder / "trace-4-5.json").at("aten::mm"), 2);
}

TEST(StepTrace, ARequestWithoutAFolderIsRefused) {
  const CapturedLog log;
  StepTrace trace("", "");
  request_trace(2);
  take_steps(trace, 1, 2);
  EXPECT_FALSE(trace.active());
  EXPECT_THAT(log.text(), HasSubstr("a trace was requested, but the run has no folder for it. Set run_folder."));
}

TEST(StepTrace, PhasesLieInsideTheirStepAndOperatorsInsideTheirPhase) {
  const TemporaryFolder folder;
  StepTrace trace("1", folder.path());
  take_steps(trace, 1, 1);
  std::map<std::string, std::pair<double, double>> bars;
  std::map<std::string, int64_t> threads;
  const Json written = Json::parse(read_bytes(folder / "trace-1-1.json"));
  for (const Json& event : written.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const double start = event.at("ts").get<double>();
    bars[event.at("name")] = {start, start + event.at("dur").get<double>()};
    threads[event.at("name")] = event.at("tid").get<int64_t>();
  }
  const auto inside = [&](const char* inner, const char* outer) {
    return bars.at(outer).first <= bars.at(inner).first && bars.at(inner).second <= bars.at(outer).second;
  };
  EXPECT_TRUE(inside("forward", "step 1"));
  EXPECT_TRUE(inside("aten::mm", "forward"));
  EXPECT_EQ(threads.at("aten::mm"), threads.at("step 1"));
}

TEST(StepTrace, TakesInWhatALoaderDrew) {
  const TemporaryFolder folder;
  StepTrace trace("2-3", folder.path());
  take_steps(trace, 1, 1);
  EXPECT_FALSE(trace.loader_writer());
  take_steps(trace, 2, 2);
  const auto loader = trace.loader_writer();
  ASSERT_TRUE(loader);
  loader->add({.name = "decode", .category = "data", .start_us = trace_now_us(), .duration_us = 1});
  take_steps(trace, 3, 3);
  EXPECT_FALSE(trace.loader_writer());
  loader->add({.name = "decode", .category = "data", .start_us = trace_now_us(), .duration_us = 1});  // too late
  EXPECT_EQ(counts_of(folder / "trace-2-3.json").at("decode"), 1);
}

TEST(StepTrace, ARunThatEndsInsideARangeKeepsWhatItHas) {
  const TemporaryFolder folder;
  {
    StepTrace trace("2-9", folder.path());
    take_steps(trace, 1, 4);
    EXPECT_TRUE(trace.active());
    trace.before(5);  // this one fails
  }
  EXPECT_EQ(counts_of(folder / "trace-2-4.json").at("aten::mm"), 3);
  StepTrace resumed("2-9", folder.path());
  take_steps(resumed, 5, 9);
  EXPECT_EQ(counts_of(folder / "trace-5-9.json").at("aten::mm"), 5);
}

TEST(StepTrace, ObservesNothingOutsideItsSteps) {
  const TemporaryFolder folder;
  StepTrace trace("2", folder.path());
  trace.before(1);
  EXPECT_FALSE(trace.active());
  EXPECT_FALSE(at::hasCallbacks());
  trace.after(1);
  trace.before(2);
  EXPECT_TRUE(trace.active());
  EXPECT_TRUE(at::hasCallbacks());
  trace.after(2);
  EXPECT_FALSE(at::hasCallbacks());
}

TEST(StepTrace, NeedsAFolderThatCanBeWritten) {
  EXPECT_THAT(error_of([] { StepTrace("1", ""); }), HasSubstr("Set run_folder"));
  EXPECT_EQ(error_of([] { StepTrace("", ""); }), "");
  const TemporaryFolder folder;
  write_bytes(folder / "file", "");
  StepTrace trace("1", folder / "file");
  EXPECT_THAT(error_of([&] { take_steps(trace, 1, 1); }), HasSubstr("trace-1-1.json"));
  EXPECT_FALSE(trace.active());
}

}  // namespace bellows::train
