#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "bellows/serve/statistics.h"
#include "tests/serve/started_server.h"

namespace bellows::serve {

namespace {

using nlohmann::json;
using std::chrono::microseconds;
using testing::HasSubstr;
using testing::Not;

}  // namespace

TEST(LatencyCounts, SortsByDuration) {
  LatencyCounts counts;
  for (const int64_t us : {-1, 0, 10}) counts.add(microseconds(us));
  EXPECT_EQ(counts.counts[0], 3);
  counts.add(std::chrono::hours(24));
  EXPECT_EQ(counts.counts.back(), 1);
  for (size_t i = 1; i < LatencyCounts::buckets; ++i) {
    LatencyCounts one;
    const double middle = (LatencyCounts::bound_us(i - 1) + LatencyCounts::bound_us(i)) / 2;
    one.add(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::micro>(middle)));
    EXPECT_EQ(one.counts[i], 1) << i;
  }
}

TEST(StatusPage, ForbidsForeignContent) {
  StartedServer server;
  const RawResponse one = server.ask(get("/")), two = server.ask(get("/?x=1"));
  ASSERT_EQ(one.status, 200);
  EXPECT_EQ(one.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(one.headers.at("x-content-type-options"), "nosniff");
  const std::string policy = one.headers.at("content-security-policy");
  EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
  EXPECT_THAT(policy, HasSubstr("frame-ancestors 'none'"));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  std::smatch nonce;
  ASSERT_TRUE(std::regex_search(policy, nonce, std::regex("script-src 'nonce-([0-9a-f]{32})'")));
  EXPECT_THAT(one.body, HasSubstr("<script nonce=\"" + nonce[1].str() + "\">"));
  EXPECT_THAT(one.body, Not(HasSubstr("{{nonce}}")));
  EXPECT_NE(one.headers.at("content-security-policy"), two.headers.at("content-security-policy"));
  EXPECT_THAT(one.body, Not(HasSubstr("http://www.w3.org/1999")));
  EXPECT_THAT(one.body, Not(HasSubstr("src=")));
  EXPECT_THAT(one.body, Not(HasSubstr("innerHTML")));
}

TEST(StatusPage, ReportsModelsAndLoad) {
  StartedServer server;
  for (int i = 0; i < 3; ++i) server.ask(infer("identity"));
  server.ask(post("/v2/models/identity/infer", "{"));
  const json status = json::parse(server.ask(get("/status")).body);
  EXPECT_EQ(status["server"]["ready"], true);
  EXPECT_GE(status["server"]["connections"], 1);
  EXPECT_GT(status["server"]["uptime_s"], 0);
  std::map<std::string, json> models;
  for (const json& model : status["models"]) models[model["name"]] = model;
  EXPECT_EQ(models.at("damaged")["state"], "UNAVAILABLE");
  EXPECT_THAT(models.at("damaged")["reason"].get<std::string>(), HasSubstr("damaged model file"));
  const json& load = models.at("identity")["load"];
  EXPECT_EQ(load["success"], 3);
  EXPECT_EQ(load["failures"], 1);
  EXPECT_EQ(load["executions"], 3);
  int64_t counted = 0;
  for (const json& bucket : load["latency"]) {
    counted += bucket[1].get<int64_t>();
    EXPECT_LT(bucket[2], bucket[0]);
  }
  EXPECT_EQ(counted, 3);
  EXPECT_EQ(server.ask(post("/status", "")).status, 404);
  EXPECT_EQ(server.ask(get("/status/x")).status, 404);
}

TEST(StatusPage, EscapesNamesInJson) {
  StartedServer server([](ServerOptions&, const TestFolder& folder) {
    folder.write("models/<script>\"\\\xff/1/model.test", "identity");
  });
  const json status = json::parse(server.ask(get("/status")).body);
  EXPECT_THAT(status.dump(), HasSubstr("<script>"));
}

}  // namespace bellows::serve
