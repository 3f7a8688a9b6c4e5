#include <gmock/gmock.h>
#include <sched.h>
#include <sys/mount.h>
#include <torch/torch.h>

#include <functional>
#include <thread>

#include "bellows/checkpoint/async_saver.h"
#include "tests/checkpoint/support.h"

namespace bellows::checkpoint {

namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

State state_of_size(int64_t step, int64_t floats) {
  return {.model = {{"w", at::full({floats}, static_cast<float>(step))}}, .step = step};
}

/// Runs `action` with a folder on a disk of 256 KiB. Where this thread may not mount one (it needs root), a limit on
/// the size of files stands in for it.
void on_small_disk(const std::function<void(const std::string& folder)>& action) {
  const TemporaryFolder temporary;
  std::thread([&] {  // the mount is this thread's own, and ends with it
    const bool mounted = unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                         mount("none", temporary.path().c_str(), "tmpfs", 0, "size=256k") == 0;
    std::optional<FileSizeLimit> limit;
    if (!mounted) limit.emplace(256 << 10);
    action(temporary.path());
  })
      .join();
}

void expect_only(const Folder& folder, int64_t step) {
  EXPECT_THAT(folder.list(), testing::ElementsAre(folder.path_of(step)));
  size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
    files += entry.is_regular_file();
  EXPECT_EQ(files, 2u) << "the checkpoint and .lock; a part of a file was left";
}

}  // namespace

TEST(FullDisk, LeavesWhatWasThereAndSaysWhatIsNeeded) {
  on_small_disk([](const std::string& path) {
    Folder folder(path, 1);
    folder.save(state_of_size(1, 1000));
    const std::string message = error_of([&] { folder.save(state_of_size(2, 100'000)); });
    EXPECT_THAT(message, AllOf(HasSubstr("step-000000000002.pt"), HasSubstr("at byte "),
                               AnyOf(HasSubstr("No space left on device"), HasSubstr("File too large")),
                               HasSubstr("need 400000 bytes"), HasSubstr(" free.")));
    expect_only(folder, 1);
    EXPECT_EQ(folder.newest()->step, 1);
    EXPECT_THROW(folder.save_best(state_of_size(2, 100'000), 0.5, 1), c10::Error);
    expect_only(folder, 1);
    EXPECT_TRUE(folder.best().empty());
    folder.save(state_of_size(3, 1000));  // it goes on once there is space
    expect_only(folder, 3);
  });
}

TEST(FullDisk, LeavesTheOldFileOfTheSameStep) {
  on_small_disk([](const std::string& path) {
    Folder folder(path);
    folder.save(state_of_size(1, 1000));
    EXPECT_NE(error_of([&] { folder.save(state_of_size(1, 100'000)); }), "");
    EXPECT_EQ(folder.newest()->model.at(0).second.numel(), 1000);
    expect_only(folder, 1);
  });
}

TEST(FullDisk, InTheBackgroundIsSaidAtTheNextCall) {
  on_small_disk([](const std::string& path) {
    Folder folder(path);
    AsyncSaver saver;
    saver.save(folder, state_of_size(1, 1000));
    saver.save(folder, state_of_size(2, 100'000));
    EXPECT_THAT(error_of([&] { saver.save(folder, state_of_size(3, 1000)); }), HasSubstr("need 400000 bytes"));
    expect_only(folder, 1);
    saver.save(folder, state_of_size(4, 1000));
    EXPECT_EQ(error_of([&] { saver.wait(); }), "") << "an error is said once";
    EXPECT_EQ(folder.newest()->step, 4);
  });
}

}  // namespace bellows::checkpoint
