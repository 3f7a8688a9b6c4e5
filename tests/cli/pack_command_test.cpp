#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "bellows/core/seed.h"
#include "bellows/system/file.h"
#include "failure.h"
#include "forked.h"
#include "process.h"
#include "tests/support/slow_tests.h"

namespace bellows::cli {

namespace {

using Clock = std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// All files of a result, with their names.
std::string content_of(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return read_text_file(path);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::string content;
  for (const auto& file : files) content += file.filename().string() + "\n" + read_text_file(file);
  return content;
}

struct Packing {
  const char* name;
  const char* destination;
  std::vector<std::string> options;
};

void PrintTo(const Packing& packing, std::ostream* out) {
  *out << packing.name;
}

std::vector<std::string> pack_arguments(const Packing& packing, const std::string& destination) {
  std::vector<std::string> arguments = {"pack", digits(), destination, "--split", "train"};
  arguments.insert(arguments.end(), packing.options.begin(), packing.options.end());
  return arguments;
}

bool is_finished(const std::string& destination) {
  return std::filesystem::exists(destination) && !std::filesystem::exists(destination + ".packing") &&
         !std::filesystem::exists(destination + "/.packing");
}

struct KilledPack : ::testing::TestWithParam<Packing> {};

/// Waits until the command has written its first file.
void wait_for_files(const std::string& destination) {
  const std::filesystem::path path(destination);
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (Clock::now() < deadline) {
    for (const auto& entry : std::filesystem::directory_iterator(path.parent_path()))
      if (entry.path().filename().string().find(path.stem().string()) != std::string::npos) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

TEST(PackCommand, ConvertsAndSaysSo) {
  const Scratch folder;
  const Outcome outcome = run_bellows({"pack", digits(), folder / "digits", "--split", "test", "--resize", "4",
                                       "--encode", "png", "--verify", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["format"], "pack");
  EXPECT_EQ(json["samples"], 359);
  EXPECT_EQ(json["compared"], 359);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("writing 359/359 samples"), HasSubstr("verifying 359/359 samples")));
  const Outcome again = run_bellows({"pack", folder / "digits", folder / "a.tar", "--threads", "1"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out,
              AllOf(HasSubstr("359 samples in 1 file ("), HasSubstr("), webdataset, "),
                    HasSubstr("All samples were read back, and 256 of them were compared with the source.")));
  EXPECT_THAT(again.out, HasSubstr("Dataset: " + folder / "a.tar"));
  const Outcome pictures = run_bellows({"pack", folder / "digits", folder / "pictures", "--format", "folder"});
  EXPECT_THAT(pictures.out, HasSubstr("359 samples in 1 folder (")) << pictures.err;
}

TEST(PackCommand, WrongUseAndFailuresAreNamed) {
  const Scratch folder;
  const std::string out = folder / "out";
  expect_failure(run_forked({"pack", digits()}), 2, "DST");
  expect_failure(run_forked({"pack", digits(), out, "--format", "webdatset"}), 2, "Did you mean \"webdataset\"?");
  expect_failure(run_forked({"pack", digits(), out, "--resize", "big"}), 2, "--resize: expected the shorter side");
  expect_failure(run_forked({"pack", digits(), out, "--encode", "jpg:0"}), 2, "quality from 1 to 100");
  expect_failure(run_forked({"pack", digits(), out, "--shard-size", "many"}), 2, "--shard-size");
  expect_failure(run_forked({"pack", "/nowhere/digits", out}), 1, "/nowhere/digits");
  for (const char* size : {"0", "0MB", "2000000TB"})
    expect_failure(run_forked({"pack", digits(), out, "--shard-size", size}), 2,
                   "--shard-size: expected a size from 1 byte");
  expect_failure(run_forked({"pack", digits(), out, "--shard-size=-5MB"}), 2, "--shard-size");
  expect_failure(run_forked({"pack", digits(), out, "--shard-size", "-5"}), 2,
                 "--shard-size: expected a size from 1 byte");
  expect_failure(run_forked({"pack", digits(), out, "--shard-samples", "0"}), 2, "--shard-samples");
  expect_failure(run_forked({"pack", digits(), out}), 1,
                 "has several splits: test, train. Choose one with the option --split");
  EXPECT_THAT(run_forked({"pack", digits(), out}).err, Not(HasSubstr("open(")));
  EXPECT_THAT(run_forked({"pack", "--help"}).out, HasSubstr("[default: keep]"));
  expect_failure(run_forked({"pack", digits(), "/proc/out", "--split", "test"}), 1, "/proc/out");
  std::ofstream(folder / "taken.pack") << "mine";
  expect_failure(run_forked({"pack", digits(), folder / "taken.pack", "--format", "tfrecord"}), 2,
                 "is a file. Expected a folder");
  expect_failure(run_forked({"pack", digits(), folder / "taken.pack", "--format", "mds"}), 2,
                 "is a file. Expected a folder");
  expect_failure(run_forked({"pack", digits(), folder / "taken.pack/b.pack"}), 2,
                 "taken.pack is a file. Expected a folder");
  expect_failure(run_forked({"pack", folder / "", folder / "b"}), 2, "is inside SRC");
  expect_failure(run_forked({"pack", folder / "", folder / "b.tar"}), 2, "is inside SRC");
  expect_failure(run_forked({"pack", digits(), folder / "taken.pack", "--split", "test"}), 1, "already exists");
  expect_failure(run_forked({"pack", digits(), out, "--split", "test", "--select", "/nowhere/s.json"}), 1,
                 "/nowhere/s.json");
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(PackCommand, SuffixesThatAreNotWrittenAreWrongUse) {
  const Scratch folder;
  for (const char* name : {"x.tar.gz", "x.zip", "x.mds", "z.parquet"})
    expect_failure(run_forked({"pack", digits(), folder / name, "--split", "test"}), 2, "no output format uses .");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(PackCommand, NamesThatAreNotUtf8) {
  const Scratch folder;
  std::filesystem::copy(digits(), folder / "s\xff", std::filesystem::copy_options::recursive);
  const Outcome outcome = run_bellows({"pack", folder / "s\xff", folder / "d\xff", "--split", "test", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["samples"], 359);
  expect_failure(run_bellows({"pack", folder / "s\xff", folder / "k\xff.pack", "--split", "test"}), 1,
                 "the name \"k\\xff.pack\" is not UTF-8");
  EXPECT_FALSE(std::filesystem::exists(folder / "k\xff.pack.packing"));
}

TEST(PackCommand, FullDiskIsSaidAndTheSameCommandGoesOn) {
  const Scratch folder;
  const std::vector<std::string> arguments = {"pack", digits(), folder / "a.tar", "--split", "test"};
  const Outcome outcome = Process({.arguments = arguments, .file_limit = 64 * 1024}).finish();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("File too large"));
  EXPECT_FALSE(std::filesystem::exists(folder / "a.tar"));
  EXPECT_EQ(run_bellows(arguments).exit_code, 0);
}

TEST(PackCommand, CtrlCEndsInOrderAndTheSameCommandGoesOn) {
  const Scratch folder;
  const Packing packing{"", "", {"--resize", "224x224", "--encode", "raw", "--shard-samples", "100"}};
  Process process({.arguments = pack_arguments(packing, folder / "a")});
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (!std::filesystem::exists(folder / "a/.packing/train-000001.pack") && Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  process.signal(SIGINT);
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("stopping: finishing the current sample"));
  EXPECT_THAT(outcome.out, HasSubstr("Run the same command again to resume"));
  EXPECT_TRUE(std::filesystem::exists(folder / "a/.packing/packing.json"));
  std::vector<std::string> arguments = pack_arguments(packing, folder / "a");
  arguments.push_back("--json");
  const Outcome again = run_bellows(arguments);
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_GE(nlohmann::json::parse(again.out)["kept"], 200);
}

// kill -9 at random moments, again and again: in the end there is the same data set as without.
TEST_P(KilledPack, GoesOnWhereItWas) {
  const Scratch folder;
  const std::string whole = folder / (std::string("whole") + GetParam().destination);
  const std::string killed = folder / (std::string("killed") + GetParam().destination);
  const auto start = Clock::now();
  ASSERT_EQ(run_bellows(pack_arguments(GetParam(), whole)).exit_code, 0);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();

  const int kills = slow_tests() ? 100 : 4;
  const char* given = std::getenv("BELLOWS_KILL_SEED");
  const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device()();
  RecordProperty("seed", std::to_string(seed));
  RandomStream random(seed);
  int inside = 0;
  for (int i = 0; i < kills; ++i) {
    if (is_finished(killed)) std::filesystem::remove_all(killed);
    Process process({.arguments = pack_arguments(GetParam(), killed)});
    if (i == 0)
      wait_for_files(killed);  // before the end, however fast the machine is now
    else
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds * (0.1 + 0.9 * random.uniform())));
    process.signal(SIGKILL);
    const Outcome outcome = process.finish();
    ASSERT_THAT(outcome.exit_code, ::testing::AnyOf(0, -SIGKILL)) << "seed " << seed << "\n" << outcome.err;
    inside += outcome.exit_code == -SIGKILL;
  }
  if (!is_finished(killed)) {
    const Outcome outcome = run_bellows(pack_arguments(GetParam(), killed));
    ASSERT_EQ(outcome.exit_code, 0) << "seed " << seed << "\n" << outcome.err;
  }
  EXPECT_GT(inside, 0) << "seed " << seed;
  EXPECT_TRUE(content_of(killed) == content_of(whole)) << "seed " << seed;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
    EXPECT_THAT(entry.path().string(), AllOf(Not(HasSubstr(".tmp-")), Not(HasSubstr(".partial")))) << "seed " << seed;
}

INSTANTIATE_TEST_SUITE_P(
    PackCommand, KilledPack,
    ::testing::Values(Packing{"Pages", ".pack", {"--resize", "160x160", "--encode", "raw"}},
                      Packing{"Shards", "", {"--format", "webdataset", "--resize", "80x80", "--shard-samples", "40"}}),
    [](const auto& setup) { return setup.param.name; });

}  // namespace bellows::cli
