#include "bellows/checkpoint/folder.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/checkpoint/support.h"

namespace bellows::checkpoint {

namespace {

using testing::AllOf;
using testing::HasSubstr;

State state_at(int64_t step) {
  return {.model = {{"w", torch::full({50}, step)}}, .step = step};
}

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
    EXPECT_THAT(log.text(), AllOf(HasSubstr("step-000000000003.pt"), HasSubstr("passed over")));
  }
}

TEST(Folder, AllDamagedIsAnError) {
  const TemporaryFolder temporary;
  Folder folder(temporary.path());
  write_bytes(folder.save(state_at(1)), "not a checkpoint");
  const CapturedLog log;
  EXPECT_THAT(error_of([&] { folder.newest(); }), AllOf(HasSubstr("none of the 1"), HasSubstr(temporary.path())));
}

TEST(Folder, LeftoversGoAndOtherFilesStay) {
  const TemporaryFolder temporary;
  const std::string leftover = temporary / "step-000000000007.pt.aB3xYz";
  const std::string others[] = {temporary / "notes.txt", temporary / "step-7.pt", temporary / "step-000000000007.pt"};
  write_bytes(leftover, "half");
  for (const std::string& other : others) write_bytes(other, "mine");
  const Folder folder(temporary.path());
  EXPECT_FALSE(std::filesystem::exists(leftover));
  for (const std::string& other : others) EXPECT_TRUE(std::filesystem::exists(other)) << other;
}

TEST(Folder, UnwritableIsSaidAtOnce) {
  const TemporaryFolder temporary;
  write_bytes(temporary / "file", "in the way");
  EXPECT_THAT(error_of([&] { Folder(temporary / "file"); }), HasSubstr(temporary / "file"));
  EXPECT_THAT(error_of([&] { Folder(temporary / "file/run"); }),
              AllOf(HasSubstr("cannot make the folder"), HasSubstr("file/run")));
  EXPECT_THAT(error_of([&] { Folder("/proc/bellows"); }), HasSubstr("/proc/bellows"));
  EXPECT_THROW(Folder(temporary.path(), 0), c10::ValueError);
}

}  // namespace bellows::checkpoint
