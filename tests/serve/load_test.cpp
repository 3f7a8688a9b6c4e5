// The load generator, without a server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "bellows/serve/load/arrivals.h"
#include "bellows/serve/load/load_data.h"
#include "bellows/serve/load/samples.h"
#include "tests/serve/test_models.h"
#include "tests/support/errors.h"

namespace bellows::serve {

namespace {

using nlohmann::json;
using testing::HasSubstr;
using End = LoadSample::End;

constexpr int64_t second = 1'000'000'000;

const char* const sum_metadata = R"({"name":"sum","versions":["1","3"],"inputs":[
  {"name":"a","datatype":"INT64","shape":[-1,2]},{"name":"b","datatype":"INT64","shape":[-1,2]}]})";

LoadRequest first_request(const std::string& metadata, const LoadOptions& options) {
  return make_requests(parse_metadata(metadata), options).front();
}

std::string metadata_of(const std::string& datatype, const std::string& shape) {
  return R"({"inputs":[{"name":"x","datatype":")" + datatype + R"(","shape":)" + shape + "}]}";
}

}  // namespace

TEST(LoadSamples, PercentilesAreMeasuredValues) {
  std::vector<int64_t> values;
  EXPECT_EQ(percentile(values, 0.5), 0);
  for (int64_t i = 1; i <= 100; ++i) values.push_back(10 * i);
  EXPECT_EQ(percentile(values, 0.5), 500);
  EXPECT_EQ(percentile(values, 0.95), 950);
  EXPECT_EQ(percentile(values, 0.99), 990);
  EXPECT_EQ(percentile(values, 0.991), 1000);
  EXPECT_EQ(percentile(values, 0), 10);
  EXPECT_EQ(percentile(values, 1), 1000);
  values.resize(20);
  EXPECT_EQ(percentile(values, 0.95), 190);
  values.resize(3);
  EXPECT_EQ(percentile(values, 0.5), 20);
  EXPECT_EQ(percentile(values, 0.99), 30);
}

TEST(LoadSamples, SummarizesLatencies) {
  const LatencySummary summary = summarize({3 * second, second, 2 * second, 6 * second});
  EXPECT_EQ(summary.count, 4);
  EXPECT_DOUBLE_EQ(summary.mean_s, 3);
  EXPECT_DOUBLE_EQ(summary.p50_s, 2);
  EXPECT_DOUBLE_EQ(summary.p90_s, 6);
  EXPECT_DOUBLE_EQ(summary.max_s, 6);
  EXPECT_EQ(summarize({}).count, 0);
}

TEST(LoadSamples, CountsRequestsThatWereDoneInTheWindow) {
  const std::vector<LoadSample> samples{{0, second / 2, End::ok},
                                        {second / 2, second, End::ok},
                                        {second, 3 * second / 2, End::failed},
                                        {second, 2 * second, End::ok},
                                        {second, 3 * second, End::ok}};
  const WindowRate window = window_rate(samples, second, 3 * second);
  EXPECT_DOUBLE_EQ(window.rate, 1);
  EXPECT_DOUBLE_EQ(window.mean_s, 0.75);
  const LevelResult closed = summarize_level(samples, second, 3 * second, false);
  EXPECT_DOUBLE_EQ(closed.seconds, 2);
  EXPECT_EQ(closed.requests, 2);
  EXPECT_EQ(closed.failed, 1);
  EXPECT_DOUBLE_EQ(closed.requests_per_s, 1);
  EXPECT_EQ(closed.latency.count, 2);
  EXPECT_DOUBLE_EQ(closed.latency.max_s, 1);
}

TEST(LoadSamples, CountsLatenciesOfAnOpenLoopFromTheIntendedStart) {
  // The server stops for three seconds. One request waits for it, and three others wait for a connection.
  const std::vector<LoadSample> samples{{0, second, End::ok},
                                        {second, 4 * second, End::ok},
                                        {2 * second, 4 * second, End::ok},
                                        {3 * second, 5 * second, End::ok},
                                        {3 * second, 9 * second, End::unanswered}};
  const LevelResult open = summarize_level(samples, second, 4 * second, true);
  EXPECT_EQ(open.latency.count, 4);
  EXPECT_DOUBLE_EQ(open.latency.p50_s, 2);
  EXPECT_DOUBLE_EQ(open.latency.max_s, 6);
  EXPECT_EQ(open.requests, 1);  // the throughput counts the requests that were done in this time
  EXPECT_EQ(open.failed, 1);
}

TEST(LoadSamples, WindowsAreStableIfRateAndLatencyAre) {
  const auto windows = [](std::initializer_list<double> rates, double last_latency = 1) {
    std::vector<WindowRate> result;
    for (const double rate : rates) result.push_back({rate, 1});
    result.back().mean_s = last_latency;
    return result;
  };
  EXPECT_FALSE(is_stable(windows({100, 100}), 0.1));
  EXPECT_TRUE(is_stable(windows({100, 100, 100}), 0.1));
  EXPECT_TRUE(is_stable(windows({10, 95, 100, 105}), 0.1));
  EXPECT_FALSE(is_stable(windows({80, 100, 120}), 0.1));
  EXPECT_FALSE(is_stable(windows({100, 100, 100}, 2), 0.1));
  EXPECT_FALSE(is_stable(windows({0, 0, 0}), 0.1));
}

TEST(LoadArrivals, ConstantDistancesHaveNoDrift) {
  Arrivals arrivals(3, false, 1);
  EXPECT_EQ(arrivals.next(), 0);
  EXPECT_EQ(arrivals.next(), 333'333'333);
  EXPECT_EQ(arrivals.next(), 666'666'666);
  EXPECT_EQ(arrivals.next(), second);
}

TEST(LoadArrivals, PoissonDistancesAreExponential) {
  constexpr int count = 100'000;
  Arrivals arrivals(1000, true, 7), same(1000, true, 7), other(1000, true, 8);
  double sum = 0, squares = 0;
  int64_t before = 0;
  for (int i = 0; i < count; ++i) {
    const int64_t at = arrivals.next();
    EXPECT_EQ(at, same.next());
    const double distance = 1e-6 * static_cast<double>(at - before);  // ms
    sum += distance;
    squares += distance * distance;
    before = at;
  }
  EXPECT_NE(before, other.next());
  EXPECT_NEAR(sum / count, 1, 0.02);
  EXPECT_NEAR(squares / count, 2, 0.1);  // the variance of an exponential distribution is the square of its mean
}

TEST(LoadData, MakesRandomRequestsFromTheMetadata) {
  const LoadMetadata metadata = parse_metadata(sum_metadata);
  EXPECT_EQ(metadata.version, "3");
  const auto requests = make_requests(metadata, {.batch_size = 3, .vocabulary = 5});
  EXPECT_EQ(requests.size(), 8);
  EXPECT_NE(requests[0][0].bytes, requests[1][0].bytes);
  EXPECT_EQ(requests[0][1].name, "b");
  EXPECT_EQ(requests[0][1].shape, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(requests[0][1].bytes.size(), 48);
  const json inputs = json::parse(request_body(requests[0], true).text)["inputs"];
  ASSERT_EQ(inputs.size(), 2);
  for (const json& one : inputs)
    for (const json& value : one["data"]) EXPECT_TRUE(value >= 0 && value < 5);
  EXPECT_EQ(make_requests(metadata, {.batch_size = 3, .vocabulary = 5})[0][0].bytes, requests[0][0].bytes);
  EXPECT_NE(make_requests(metadata, {.seed = 2, .batch_size = 3, .vocabulary = 5})[0][0].bytes, requests[0][0].bytes);
}

TEST(LoadData, MakesValuesOfAllDtypes) {
  for (const char* type : {"BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
                           "BF16", "FP32", "FP64"}) {
    const LoadRequest request = first_request(metadata_of(type, "[-1,6]"), {});
    EXPECT_EQ(request[0].bytes.size(), 6 * element_bytes(type)) << type;
    if (std::string(type) != "FP16" && std::string(type) != "BF16") {
      EXPECT_EQ(json::parse(request_body(request, true).text)["inputs"][0]["data"].size(), 6) << type;
    }
  }
  const LoadRequest texts = first_request(metadata_of("BYTES", "[2]"), {});
  EXPECT_THAT(json::parse(request_body(texts, true).text)["inputs"][0]["data"][1].get<std::string>(),
              testing::StartsWith("text "));
  EXPECT_THAT(message_of([] { request_body(first_request(metadata_of("BF16", "[2]"), {}), true); }),
              HasSubstr("BF16, which has no JSON form"));
}

TEST(LoadData, BinaryBodiesHaveTheBytesAfterTheJsonText) {
  const LoadBody body = request_body(
      {{"x", "INT16", {1, 2}, std::string("\1\0\2\0", 4)}, {"y", "BYTES", {1}, std::string("\1\0\0\0a", 5)}}, false);
  const json head = json::parse(body.text.substr(0, body.header_bytes));
  EXPECT_EQ(head["inputs"][0]["parameters"]["binary_data_size"], 4);
  EXPECT_EQ(head["inputs"][1]["shape"], json({1}));
  EXPECT_EQ(head["parameters"]["binary_data_output"], true);
  EXPECT_EQ(body.text.substr(body.header_bytes), std::string("\1\0\2\0\1\0\0\0a", 9));
}

TEST(LoadData, RejectsWrongShapes) {
  const std::string ids = metadata_of("INT64", "[-1,-1]");
  EXPECT_THAT(message_of([&] { first_request(ids, {}); }), HasSubstr("Pass all sizes, such as --shape x:1,16"));
  EXPECT_EQ(first_request(ids, {.shapes = {{"x", {2, 14}}}})[0].shape, (std::vector<int64_t>{2, 14}));
  EXPECT_THAT(message_of([&] {
                first_request(metadata_of("INT64", "[-1,4]"), {.shapes = {{"x", {2, 5}}}});
              }),
              HasSubstr("expected sizes [-1, 4], where -1 is any size, got [2, 5]"));
  EXPECT_THAT(message_of([&] { first_request(ids, {.shapes = {{"x", {2}}}}); }), HasSubstr("got [2]"));
  EXPECT_THAT(message_of([&] { first_request(ids, {.shapes = {{"y", {2, 3}}}}); }), HasSubstr("Inputs: x."));
  EXPECT_THAT(message_of([&] { first_request(metadata_of("INT5", "[2]"), {}); }), HasSubstr("INT5"));
  EXPECT_THAT(message_of([] { parse_metadata("<html>"); }), HasSubstr("not the metadata"));
  EXPECT_THAT(message_of([] { parse_metadata(R"({"inputs":[{"name":"x"}]})"); }), HasSubstr("malformed"));
}

TEST(LoadData, ReadsValuesFromAFile) {
  const TestFolder folder;
  const std::string file = folder.path() + "/data.json";
  const auto made = [&](const std::string& metadata, const std::string& text) {
    folder.write("data.json", text);
    return make_requests(parse_metadata(metadata), {.data_file = file});
  };
  const auto requests =
      made(metadata_of("INT64", "[-1,2]"), R"({"data":[{"x":[1,2,3,4]},{"x":[[9007199254740993,6]]}]})");
  ASSERT_EQ(requests.size(), 2);
  EXPECT_EQ(requests[0][0].shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(json::parse(request_body(requests[1], true).text)["inputs"][0]["data"], json({9007199254740993, 6}));
  const auto described = made(metadata_of("FP32", "[-1,-1]"), R"({"data":[{"x":{"content":[1,2.5],"shape":[1,2]}}]})");
  EXPECT_EQ(described[0][0].shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(made(metadata_of("BYTES", "[-1]"), R"({"data":[{"x":["é"]}]})")[0][0].bytes, std::string("\2\0\0\0é", 6));

  const std::string two = metadata_of("FP32", "[-1,2]");
  EXPECT_THAT(message_of([&] { made(two, "{}"); }), HasSubstr("expected an object such as"));
  EXPECT_THAT(message_of([&] { made(two, R"({"data":[{"x":[1,2]},{"y":[1]}]})"); }),
              HasSubstr("element 1 of \"data\" has no input \"x\""));
  EXPECT_THAT(message_of([&] { made(two, R"({"data":[{"x":["a"]}]})"); }), HasSubstr("expected numbers, got \"a\""));
  EXPECT_THAT(message_of([&] { made(two, R"({"data":[{"x":[1,2,3]}]})"); }), HasSubstr("do not match the 3 values"));
  EXPECT_THAT(message_of([&] { make_requests(parse_metadata(two), {.data_file = file + "2"}); }),
              HasSubstr("data.json2"));
}

TEST(LoadReport, IsWrittenAsJsonAndAsAChart) {
  LoadReport report{.url = "127.0.0.1:1", .model = "a<b", .inputs = "x FP32 [1]"};
  EXPECT_THAT(latency_chart(report), HasSubstr("No request was answered"));
  LevelResult one = summarize_level(std::vector<LoadSample>{{0, second, End::ok}}, 0, 2 * second, false);
  one.level.concurrency = 4;
  one.server = ServerTimes{.requests = 1, .queue_s = 0.25, .batch_size = 2};
  report.levels = {one, {.level = {.concurrency = 8}, .failed = 3, .errors = {{"503", 3}}}};
  const json value = json::parse(load_report_json(report));
  EXPECT_EQ(value["levels"][0]["concurrency"], 4);
  EXPECT_EQ(value["levels"][0]["latency"]["p99_s"], 1);
  EXPECT_EQ(value["levels"][0]["server"]["queue_s"], 0.25);
  EXPECT_EQ(value["levels"][1]["errors"]["503"], 3);
  EXPECT_FALSE(value["levels"][1].contains("server"));
  const std::string chart = latency_chart(report);
  EXPECT_THAT(chart, testing::StartsWith("<svg xmlns="));
  EXPECT_THAT(chart, HasSubstr("a&lt;b"));
  EXPECT_THAT(chart, HasSubstr("concurrency 4: 0.5 requests/s, p99 1000.000 ms"));
  EXPECT_THAT(chart, testing::Not(HasSubstr("concurrency 8:")));
}

}  // namespace bellows::serve
