#include "bellows/report/trace_writer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "bellows/core/error.h"

namespace bellows {

TEST(TraceWriter, WritesTheTraceEventFormat) {
  TraceWriter trace;
  const double start = trace_now_us();
  trace.add({.name = "aten::add \"quoted\"",
             .category = "op",
             .start_us = start,
             .duration_us = 5,
             .args_json = R"({"n": 1})"});
  std::thread([&] { trace.add({.name = "other", .category = "op", .start_us = start, .duration_us = 1}); }).join();
  trace.name_thread(1, "main");
  trace.counter("memory", start, 1024);
  EXPECT_EQ(trace.size(), 4U);
  const auto json = nlohmann::json::parse(trace.to_json());
  const auto& events = json["traceEvents"];
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0]["ph"], "X");
  EXPECT_EQ(events[0]["name"], "aten::add \"quoted\"");
  EXPECT_EQ(events[0]["args"]["n"], 1);
  EXPECT_NE(events[0]["tid"], events[1]["tid"]);
  EXPECT_EQ(events[3]["args"]["value"], 1024);
}

TEST(TraceWriter, TakesInWhatAnotherOneHolds) {
  TraceWriter trace, other;
  trace.counter("a", 1, 1);
  other.counter("b", 2, 2);
  trace.append(other);
  EXPECT_EQ(trace.size(), 2U);
  EXPECT_EQ(other.size(), 1U);
  EXPECT_EQ(nlohmann::json::parse(trace.to_json())["traceEvents"][1]["name"], "b");
}

TEST(TraceWriter, KeepsTheTraceIfANameIsNotUtf8) {
  TraceWriter trace;
  trace.add({.name = "scope \xff\xc3(", .category = "c\x80", .start_us = 1, .duration_us = 1});
  trace.name_thread(1, "thread \xed\xa0\x80");
  trace.name_process("process \xf5");
  trace.counter("counter \xc0", 1, 2);
  const auto events = nlohmann::json::parse(trace.to_json())["traceEvents"];
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0]["name"], "scope \xef\xbf\xbd\xef\xbf\xbd(");
  EXPECT_EQ(events[3]["name"], "counter \xef\xbf\xbd");
}

TEST(TraceWriter, EmptyTraceIsValidAndUnwritablePathIsNamed) {
  const TraceWriter trace;
  EXPECT_TRUE(nlohmann::json::parse(trace.to_json())["traceEvents"].empty());
  EXPECT_THROW(trace.write("/proc/nowhere/trace.json"), c10::Error);
}

}  // namespace bellows
