#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "bellows/serve/trace/request_tracer.h"
#include "bellows/serve/trace/trace_context.h"
#include "bellows/system/file.h"
#include "tests/serve/started_server.h"

namespace bellows::serve {

namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

std::vector<json> lines_of(const std::string& file) {
  std::istringstream text(read_text_file(file));
  std::vector<json> lines;
  std::string line;
  while (std::getline(text, line)) lines.push_back(json::parse(line));
  return lines;
}

/// The lines after a server has answered these requests.
std::vector<json> traces_of(const std::vector<std::string>& requests, uint64_t per_second = 0) {
  const TestFolder folder;
  const std::string file = folder.path() + "/trace";
  {
    StartedServer server(
        [&](ServerOptions& options, const TestFolder&) { options.trace = {.file = file, .per_second = per_second}; });
    for (const std::string& request : requests) server.ask(request);
    server.server().drain(std::chrono::seconds(20));
  }
  std::vector<json> lines = lines_of(file);
  // A trace is written when its response was sent, so traces of two connections can change places.
  std::ranges::stable_sort(lines, {}, [](const json& one) { return one.at("received_ns").get<int64_t>(); });
  return lines;
}

}  // namespace

TEST(TraceContext, ReadsTraceparent) {
  const auto context = parse_traceparent(parent);
  ASSERT_TRUE(context);
  EXPECT_EQ(context->trace_id, "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(context->parent_id, "b7ad6b7169203331");
  EXPECT_TRUE(context->sampled);
  EXPECT_FALSE(parse_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")->sampled);
  EXPECT_TRUE(parse_traceparent("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0b-more")->sampled);
}

TEST(TraceContext, RejectsInvalidHeaders) {
  const std::string good = parent;
  for (size_t size = 0; size < good.size(); ++size) EXPECT_FALSE(parse_traceparent(good.substr(0, size))) << size;
  for (const char* wrong : {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
                            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
                            "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                            "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x"})
    EXPECT_FALSE(parse_traceparent(wrong)) << wrong;
}

TEST(TraceContext, StartsNewTraces) {
  const TraceContext one = next_span(""), two = next_span("damaged"), child = next_span(parent);
  EXPECT_EQ(one.trace_id.size(), 32);
  EXPECT_EQ(one.span_id.size(), 16);
  EXPECT_EQ(one.parent_id, "");
  EXPECT_NE(one.trace_id, two.trace_id);
  EXPECT_EQ(child.trace_id, "0af7651916cd43dd8448eb211c80319c");
  EXPECT_NE(child.span_id, child.parent_id);
}

TEST(Trace, WritesTheStepsOfARequest) {
  const std::vector<json> lines = traces_of(
      {infer("identity", "X-Request-Id: from-header\r\ntraceparent: " + std::string(parent) + "\r\n", "from-body"),
       infer("identity", "", "from-body"), get("/v2/models/identity")});
  ASSERT_EQ(lines.size(), 2) << "only inference requests are traced";
  const json& first = lines[0];
  EXPECT_EQ(first["protocol"], "http");
  EXPECT_EQ(first["model"], "identity");
  EXPECT_EQ(first["version"], "1");
  EXPECT_EQ(first["status"], 200);
  EXPECT_EQ(first["request_id"], "from-header");
  EXPECT_EQ(first["trace_id"], "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(first["parent_id"], "b7ad6b7169203331");
  EXPECT_GT(first["bytes"], 0);
  EXPECT_GT(first["received_ns"], int64_t{1'600'000'000} * 1'000'000'000);
  double before = 0;
  for (const char* step : {"queued", "batch_start", "inputs_ready", "computed", "done", "sent"}) {
    EXPECT_GE(first["us"].at(step), before) << step;
    before = first["us"][step];
  }
  EXPECT_GE(first["us"]["parsed"], 0);
  EXPECT_EQ(lines[1]["request_id"], "from-body");
  EXPECT_FALSE(lines[1].contains("parent_id"));
}

TEST(Trace, WritesFailedRequests) {
  const std::vector<json> lines =
      traces_of({post("/v2/models/identity/infer", "{"), infer("none"),
                 post("/v2/models/identity/versions/1/infer", "{}", "X-Request-Id: \xff\x80<\"\r\n")});
  ASSERT_EQ(lines.size(), 3);
  EXPECT_EQ(lines[0]["status"], 400);
  EXPECT_THAT(lines[0]["error"].get<std::string>(), HasSubstr("not valid JSON"));
  EXPECT_TRUE(lines[0]["us"].contains("sent"));
  EXPECT_FALSE(lines[0]["us"].contains("queued"));
  EXPECT_EQ(lines[1]["status"], 404);
  EXPECT_EQ(lines[2]["version"], "1");
}

TEST(Trace, WritesRequestsWithoutAResponse) {
  const TestFolder folder;
  const std::string file = folder.path() + "/trace";
  {
    StartedServer server([&](ServerOptions& options, const TestFolder&) { options.trace = {.file = file}; });
    gate().close();
    RawClient client(server.port());
    client.send(infer("gated"));
    gate().wait_for_arrivals(1);
    std::thread drain([&] { server.server().drain(std::chrono::milliseconds(1)); });
    EXPECT_TRUE(client.closed_by_server());
    gate().open();
    drain.join();
  }
  const std::vector<json> lines = lines_of(file);
  ASSERT_EQ(lines.size(), 1);
  EXPECT_TRUE(lines[0]["status"].is_null());
  EXPECT_FALSE(lines[0]["us"].contains("sent"));
}

TEST(Trace, LimitsTheRate) {
  const TestFolder folder;
  const auto tracer = std::make_shared<RequestTracer>(folder.path() + "/trace", 3);
  const auto at = [&](double seconds) {
    const Clock::time_point now{std::chrono::milliseconds(static_cast<int64_t>(1000 * (1000 + seconds)))};
    return tracer->start({.received = now}, now) != nullptr;
  };
  EXPECT_TRUE(at(0) && at(0.1) && at(0.9));
  EXPECT_FALSE(at(0.95));
  EXPECT_TRUE(at(1.1) && at(1.2) && at(1.3));
  EXPECT_FALSE(at(1.4));
  EXPECT_TRUE(at(100));
  tracer->flush();
  EXPECT_EQ(lines_of(folder.path() + "/trace").size(), 7);
}

TEST(Trace, AddsToAFile) {
  const TestFolder folder;
  const std::string file = folder.path() + "/trace";
  folder.write("trace", "{}\n");
  std::make_shared<RequestTracer>(file, 0)->start({.received = Clock::now()});
  EXPECT_EQ(lines_of(file).size(), 2);
}

TEST(Trace, ReportsFilesThatCannotBeWritten) {
  const TestFolder folder;
  EXPECT_THROW(RequestTracer(folder.path(), 0), c10::ValueError);
  EXPECT_THROW(RequestTracer(folder.path() + "/none/trace", 0), c10::ValueError);
  const auto full = std::make_shared<RequestTracer>("/dev/full", 0);
  full->start({.received = Clock::now()});
  full->flush();
  full->start({.received = Clock::now()});
  full->flush();  // the server continues without traces
}

}  // namespace bellows::serve
