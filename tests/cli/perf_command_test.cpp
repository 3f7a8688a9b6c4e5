// `bellows perf`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "bellows/system/file.h"
#include "cli/deploy/load_levels.h"
#include "cli/options.h"
#include "forked.h"
#include "process.h"
#include "trained_folder.h"

namespace bellows::cli {

namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MeasuredDigits : public TrainedMlp<MeasuredDigits> {};

/// The port in "Listening on http://127.0.0.1:PORT".
std::string announced_port(const Outcome& so_far) {
  const size_t colon = so_far.out.rfind(':');
  return colon == std::string::npos ? "" : std::to_string(std::stoi(so_far.out.substr(colon + 1)));
}

}  // namespace

TEST(LoadLevels, AreListsAndRanges) {
  EXPECT_THAT(parse_levels("4", "--x", true), ElementsAre(4));
  EXPECT_THAT(parse_levels("1:16", "--x", true), ElementsAre(1, 2, 4, 8, 16));
  EXPECT_THAT(parse_levels("3:20", "--x", true), ElementsAre(3, 6, 12, 20));
  EXPECT_THAT(parse_levels("4:12:4,50", "--x", true), ElementsAre(4, 8, 12, 50));
  EXPECT_THAT(parse_levels("0.5:2", "--x", false), ElementsAre(0.5, 1, 2));
  for (const char* text : {"", "0", "-1", "1:", "2:1", "a", "1.5", "1:2:3:4", "1,,2", "70000"})
    EXPECT_THROW(parse_levels(text, "--x", true), UsageError) << text;
  EXPECT_THROW(parse_levels("1:1000000:0.001", "--x", false), UsageError);
}

TEST_F(MeasuredDigits, PrintsATableAndDrawsAChart) {
  const std::string folder = path("models");
  std::filesystem::create_directories(folder + "/digits/1");
  const Outcome made =
      run_bellows({"export", run(), "--format", "bellows", "--output", folder + "/digits/1/model.program"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  Process server({.arguments = {"serve", "--model-repository", folder, "--port", "0"}});
  std::string port;
  ASSERT_TRUE(server.wait_until([&](const Outcome& so_far) {
    port = announced_port(so_far);
    return !port.empty() && so_far.err.find("ready") != std::string::npos;
  }));
  const std::vector<std::string> common{"perf", "digits",   "--url", "127.0.0.1:" + port, "--window",
                                        "0.1",  "--warmup", "0.1",   "--max-windows",     "3"};
  std::vector<std::string> closed = common;
  closed.insert(closed.end(), {"--concurrency", "1:2", "--json", path("perf.json"), "--chart", path("perf.svg")});
  const Outcome outcome = run_bellows(closed);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ::testing::AllOf(HasSubstr("requests/s"), HasSubstr("p99"), HasSubstr("queue"),
                                            HasSubstr("CPU time per request")));
  const Json report = Json::parse(read_text_file(path("perf.json")));
  ASSERT_EQ(report["levels"].size(), 2);
  EXPECT_EQ(report["levels"][1]["concurrency"], 2);
  EXPECT_EQ(report["levels"][1]["failed"], 0);
  EXPECT_GT(report["levels"][1]["server"]["requests"], 0);
  EXPECT_THAT(read_text_file(path("perf.svg")), HasSubstr("<polyline"));
  std::vector<std::string> open = common;
  open.insert(open.end(),
              {"--rate", "50", "--arrivals", "poisson", "--tensors", "json", "--chart", path("perf.html"), "--json"});
  const Outcome second = run_bellows(open);
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(Json::parse(second.out)["levels"][0]["rate"], 50);
  EXPECT_THAT(read_text_file(path("perf.html")), ::testing::StartsWith("<!doctype html>"));
  const Outcome unknown = run_bellows({"perf", "letters", "--url", "127.0.0.1:" + port});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("digits"));
  server.signal(SIGTERM);
  EXPECT_EQ(server.finish().exit_code, 0);
}

TEST(PerfCommand, RejectsWrongArguments) {
  EXPECT_EQ(run_forked({"perf"}).exit_code, 2);
  EXPECT_EQ(run_forked({"perf", "x", "--concurrency", "0"}).exit_code, 2);
  EXPECT_EQ(run_forked({"perf", "x", "--concurrency", "1", "--rate", "2"}).exit_code, 2);
  EXPECT_EQ(run_forked({"perf", "x", "--shape", "x"}).exit_code, 2);
  EXPECT_EQ(run_forked({"perf", "x", "--header", "x"}).exit_code, 2);
  EXPECT_EQ(run_forked({"perf", "x", "--arrivals", "bursts"}).exit_code, 2);
  const Outcome absent = run_bellows({"perf", "x", "--url", "127.0.0.1:1"});
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_THAT(absent.err, HasSubstr("no server answers at 127.0.0.1:1"));
  EXPECT_THAT(absent.err, HasSubstr("--url"));
}

}  // namespace bellows::cli
