#include "bellows/report/tensorboard_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bellows/system/file.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

namespace bellows {
namespace {

using ::testing::HasSubstr;

/// A step of a rank, as inspect::StepTracer and the profile record it.
void add_step(TraceWriter& trace) {
  trace.add({"step", "step", 100, 50, 1, ""});
  trace.add({"load", "scope", 100, 10, 1, ""});
  trace.add({"aten::mm", "op", 112, 5, 1, R"({"sequence": 7, "sizes": [[2, 3], [3, 4]]})"});
  trace.add({"MmBackward0", "backward", 120, 5, 1, ""});
  trace.add({"wait: gradients", "scope", 126, 4, 1, ""});
  trace.add({"all_reduce", "communication", 121, 9, 2, R"({"bytes": 4096, "group": "world"})"});
  trace.counter("memory", 101, 1);
}

TEST(TensorboardTrace, HasTheNamesOfTorchProfiler) {
  TraceWriter trace;
  add_step(trace);
  const auto document = nlohmann::json::parse(tensorboard_trace(trace, {.rank = 1, .ranks = 2}));
  EXPECT_EQ(document["schemaVersion"], 1);
  EXPECT_EQ(document["distributedInfo"], nlohmann::json({{"backend", "gloo"}, {"rank", 1}, {"world_size", 2}}));
  const auto& events = document["traceEvents"];
  ASSERT_EQ(events.size(), 7u);
  EXPECT_EQ(events[0]["name"], "ProfilerStep#1");
  EXPECT_EQ(events[0]["cat"], "user_annotation");
  EXPECT_EQ(events[1]["name"], "enumerate(DataLoader)#Loader.__next__");
  EXPECT_EQ(events[1]["cat"], "cpu_op");
  EXPECT_EQ(events[2]["cat"], "cpu_op");
  EXPECT_EQ(events[2]["args"]["Input Dims"], nlohmann::json({{2, 3}, {3, 4}}));
  EXPECT_EQ(events[2]["args"]["Sequence number"], 7);
  EXPECT_EQ(events[3]["name"], "autograd::engine::evaluate_function: MmBackward0");
  EXPECT_EQ(events[4]["name"], "wait: gradients");
  EXPECT_EQ(events[5]["name"], "gloo:all_reduce");
  EXPECT_EQ(events[5]["args"]["Input Dims"], nlohmann::json::parse("[[4096]]"));
  EXPECT_NE(events[2]["args"]["External id"], events[3]["args"]["External id"]);
  EXPECT_EQ(events[6]["ph"], "C");
}

TEST(TensorboardTrace, IsAFileOfAWorkerInANewFolder) {
  const TemporaryFolder folder;
  TraceWriter trace;
  add_step(trace);
  const std::string logs = folder / "logs";
  const std::string path = write_tensorboard_trace(logs, trace, {.time_ms = 1619499959628});
  EXPECT_EQ(path, logs + "/rank_0.1619499959628.pt.trace.json");
  const auto document = nlohmann::json::parse(read_text_file(path));
  EXPECT_FALSE(document.contains("distributedInfo"));
  EXPECT_THAT(message_of([&] { write_tensorboard_trace(path, trace, {}); }), HasSubstr(path));
}

}  // namespace
}  // namespace bellows
