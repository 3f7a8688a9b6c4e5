#include "bellows/checkpoint/folder.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <chrono>

#include "tests/checkpoint/support.h"

namespace bellows::checkpoint {

namespace {

using testing::AllOf;
using testing::HasSubstr;

State state_at(int64_t step) {
  return {.model = {{"w", torch::full({50}, step)}}, .step = step};
}

using namespace std::chrono_literals;

}  // namespace

TEST(Folder, KeepsTheNewest) {
  const TemporaryFolder temporary;
  Folder folder(temporary / "new/run", 2);
  EXPECT_FALSE(folder.newest());
  for (const int64_t step : {5, 100, 20}) folder.save(state_at(step));
  EXPECT_THAT(folder.list(), testing::ElementsAre(temporary / "new/run/step-000000000020.pt",
                                                  temporary / "new/run/step-000000000100.pt"));
  EXPECT_EQ(folder.newest()->step, 100);
}

TEST(Folder, WhatWasJustSavedIsNeverRemoved) {
  const TemporaryFolder temporary;
  Folder folder(temporary.path(), 1);
  folder.save(state_at(300));
  const std::string path = folder.save(state_at(200));
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST(Folder, DamagedNewestIsPassedOverAndSaid) {
  const TemporaryFolder temporary;
  Folder folder(temporary.path());
  folder.save(state_at(1));
  folder.save(state_at(2));
  const std::string third = folder.save(state_at(3));
  const std::string bytes = read_bytes(third);
  for (const std::string& damaged :
       {bytes.substr(0, bytes.size() / 2), std::string(), std::string(bytes.size(), '\0')}) {
    write_bytes(third, damaged);
    const CapturedLog log;
    const auto state = folder.newest();
    ASSERT_TRUE(state);
    EXPECT_EQ(state->step, 2);
    EXPECT_TRUE(torch::equal(state->model[0].second, state_at(2).model[0].second));
    EXPECT_THAT(log.text(), AllOf(HasSubstr("step-000000000003.pt"), HasSubstr("is damaged and skipped")));
  }
}

TEST(Folder, DamagedOnesDoNotCountAsKept) {
  const TemporaryFolder temporary;
  Folder folder(temporary.path(), 2);
  for (const int64_t step : {10, 20}) folder.save(state_at(step));
  write_bytes(folder.path_of(30), "damaged");
  write_bytes(folder.path_of(40), "damaged");
  const CapturedLog log;
  EXPECT_EQ(folder.newest()->step, 20);
  folder.save(state_at(25));
  EXPECT_THAT(folder.list(),
              testing::ElementsAre(folder.path_of(20), folder.path_of(25), folder.path_of(30), folder.path_of(40)));
  for (const int64_t step : {30, 35}) folder.save(state_at(step));  // 30 is whole again
  EXPECT_THAT(folder.list(), testing::ElementsAre(folder.path_of(30), folder.path_of(35), folder.path_of(40)));
  EXPECT_EQ(folder.newest()->step, 35);
}

TEST(Folder, ClocksDecideNothing) {
  const TemporaryFolder temporary;
  Folder folder(temporary.path(), 2);
  auto time = std::filesystem::file_time_type::clock::now();
  for (const int64_t step : {1, 2, 3, 4}) std::filesystem::last_write_time(folder.save(state_at(step)), time -= 1h);
  EXPECT_THAT(folder.list(), testing::ElementsAre(folder.path_of(3), folder.path_of(4)));
  EXPECT_EQ(folder.newest()->step, 4);
}

TEST(Folder, StepsThatHaveNoNameAreRefused) {
  const TemporaryFolder temporary;
  Folder folder(temporary.path());
  EXPECT_THAT(error_of([&] { folder.save(state_at(-1)); }), HasSubstr("got -1"));
  EXPECT_THAT(error_of([&] { folder.save(state_at(1'000'000'000'000)); }), HasSubstr("got 1000000000000"));
}

TEST(Folder, AllDamagedIsAnError) {
  const TemporaryFolder temporary;
  Folder folder(temporary.path());
  write_bytes(folder.save(state_at(1)), "not a checkpoint");
  const CapturedLog log;
  EXPECT_THAT(error_of([&] { folder.newest(); }),
              AllOf(HasSubstr("none of the 1"), HasSubstr("Error of the newest one: "), HasSubstr(temporary.path())));
}

TEST(Folder, LeftoversGoAndOtherFilesStay) {
  const TemporaryFolder temporary;
  std::filesystem::create_directory(temporary / "best");
  const std::string leftovers[] = {temporary / "step-000000000007.pt.tmp-aB3xYz", temporary / "run.json.tmp-000000",
                                   temporary / "best/step-000000000007.pt.tmp-aB3xYz"};
  const std::string others[] = {temporary / "notes.txt", temporary / "step-7.pt", temporary / "step-000000000007.pt",
                                temporary / "step-000000000007.pt.backup", temporary / ".tmp-aB3xYz"};
  for (const std::string& leftover : leftovers) write_bytes(leftover, "half");
  for (const std::string& other : others) write_bytes(other, "mine");
  const Folder folder(temporary.path());
  for (const std::string& leftover : leftovers) EXPECT_FALSE(std::filesystem::exists(leftover)) << leftover;
  for (const std::string& other : others) EXPECT_TRUE(std::filesystem::exists(other)) << other;
}

TEST(Folder, UnwritableIsSaidAtOnce) {
  const TemporaryFolder temporary;
  write_bytes(temporary / "file", "in the way");
  EXPECT_THAT(error_of([&] { Folder(temporary / "file"); }), HasSubstr(temporary / "file"));
  EXPECT_THAT(error_of([&] { Folder(temporary / "file/run"); }),
              AllOf(HasSubstr("cannot create the folder"), HasSubstr("file/run")));
  EXPECT_THAT(error_of([&] { Folder("/proc/bellows"); }), HasSubstr("/proc/bellows"));
  EXPECT_THROW(Folder(temporary.path(), 0), c10::ValueError);
}

}  // namespace bellows::checkpoint
