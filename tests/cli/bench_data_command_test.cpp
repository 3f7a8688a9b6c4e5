#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/io/images/image.h"
#include "bellows/system/file.h"
#include "forked.h"
#include "process.h"

namespace bellows::cli {

using ::testing::HasSubstr;

namespace {

void write_image(const std::string& path, int64_t height, int64_t width) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  AtomicFile file(path);
  file.write(io::encode_png(at::zeros({height, width, 3}, at::kByte)));
  file.commit();
}

}  // namespace

TEST(BenchData, ReportsRateStagesAndAdvice) {
  const Outcome outcome = run_bellows({"bench-data", digits(), "--split", "test", "--epochs", "2", "--threads", "1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("Loader: 718 samples in "));
  EXPECT_THAT(outcome.out, HasSubstr("  decode"));
  EXPECT_THAT(outcome.out, HasSubstr("Waiting for batches took"));
}

TEST(BenchData, WritesJsonAndATrace) {
  const Scratch scratch;
  const Outcome outcome = run_bellows({"bench-data", digits(), "--split", "train", "--seconds", "0.5", "--shuffle",
                                       "--json", "--trace", scratch / "load.json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_GT(json["samples"], 0);
  EXPECT_TRUE(json["auto_threads"]);
  EXPECT_FALSE(json["advice"]["sentence"].get<std::string>().empty());
  EXPECT_GT(json["stages"]["decode"]["total_s"], 0);
  std::ifstream file(scratch / "load.json");
  EXPECT_FALSE(nlohmann::json::parse(file)["traceEvents"].empty());
}

TEST(BenchData, PhotosOfDifferentSizesNeedNoOptions) {
  const Scratch scratch;
  for (int64_t i = 0; i < 6; ++i) {
    write_image(scratch / ("photos/cat/" + std::to_string(i) + ".png"), 300 + 10 * i, 400);
    write_image(scratch / ("photos/dog/" + std::to_string(i) + ".png"), 30, 20 + i);
  }
  const Outcome outcome = run_bellows({"bench-data", scratch / "photos", "--epochs", "1", "--threads", "1", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["samples"], 12);
  EXPECT_THAT(outcome.err, HasSubstr("resized to 256 pixels at its shorter side, then cropped to 224 x 224"));

  const Outcome given = run_bellows({"bench-data", scratch / "photos", "--epochs", "1", "--crop", "32"});
  EXPECT_EQ(given.exit_code, 0) << given.err;
  EXPECT_THAT(given.err, Not(HasSubstr("differ in size")));
  const Outcome uniform = run_bellows({"bench-data", digits(), "--split", "test", "--epochs", "1"});
  EXPECT_THAT(uniform.err, Not(HasSubstr("differ in size")));
}

// A pipe without a writer: opening it would wait forever.
TEST(BenchData, PipesAreRefusedAtOnce) {
  const Scratch scratch;
  ASSERT_EQ(::mkfifo((scratch / "data").c_str(), 0600), 0);
  Process on_pipe({.arguments = {"bench-data", scratch / "data"}});
  const Outcome refused = on_pipe.finish(60);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("expected a regular file"));

  write_image(scratch / "photos/cat/a.png", 8, 8);
  write_image(scratch / "photos/dog/b.png", 8, 8);
  ASSERT_EQ(::mkfifo((scratch / "photos/dog/x.png").c_str(), 0600), 0);
  Process in_folder({.arguments = {"bench-data", scratch / "photos", "--epochs", "1"}});
  const Outcome skipped = in_folder.finish(60);
  EXPECT_EQ(skipped.exit_code, 0) << skipped.err;
  EXPECT_THAT(skipped.err, HasSubstr("dog/x.png"));
}

TEST(BenchData, WrongUseExitsWith2AndBadDataWith1) {
  EXPECT_EQ(run_forked({"bench-data"}).exit_code, 2);
  const Outcome threads = run_bellows({"bench-data", digits(), "--threads", "many"});
  EXPECT_EQ(threads.exit_code, 2);
  EXPECT_THAT(threads.err, HasSubstr("a number up to 1024, or auto"));
  EXPECT_EQ(run_bellows({"bench-data", "/nowhere/at/all.tar"}).exit_code, 1);
}

}  // namespace bellows::cli
