#include "bellows/system/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>

#include "bellows/core/error.h"
#include "bellows/system/stop.h"
#include "tests/support/errors.h"

namespace bellows {

namespace {

namespace fs = std::filesystem;

struct FileTest : testing::Test {
  FileTest() : folder(fs::temp_directory_path() / ("bellows_file_test_" + std::to_string(::getpid()))) {
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  ~FileTest() override { fs::remove_all(folder); }
  std::string path(const char* name) const { return folder / name; }
  size_t entries() const { return std::distance(fs::directory_iterator(folder), fs::directory_iterator()); }

  fs::path folder;
};

}  // namespace

TEST_F(FileTest, WritesWholeOrNotAtAll) {
  write_text_file(path("a"), "old");
  {
    AtomicFile file(path("a"));
    file.write("half of the new");
    EXPECT_EQ(file.offset(), 15U);
  }
  EXPECT_EQ(read_text_file(path("a")), "old");
  EXPECT_EQ(entries(), 1U) << "the temporary file is gone";
  write_text_file(path("a"), "new");
  EXPECT_EQ(read_text_file(path("a")), "new");
  EXPECT_EQ(fs::status(path("a")).permissions() & fs::perms::owner_read, fs::perms::owner_read);
}

TEST_F(FileTest, KeepsThePermissionsAndOwnerOfAReplacedFile) {
  const auto status_of = [](const std::string& path) {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    return status;
  };
  for (const mode_t mode : {0600, 0660, 0444, 0755, 0666}) {
    write_text_file(path("a"), "old");
    ASSERT_EQ(::chmod(path("a").c_str(), mode), 0);
    const bool root = ::geteuid() == 0;
    if (root) {
      ASSERT_EQ(::chown(path("a").c_str(), 4321, 1234), 0);
    }
    write_text_file(path("a"), "new");
    EXPECT_EQ(read_text_file(path("a")), "new");
    EXPECT_EQ(status_of(path("a")).st_mode & 07777, mode);
    if (root) {
      EXPECT_EQ(status_of(path("a")).st_uid, 4321U);
    }
    if (root) {
      EXPECT_EQ(status_of(path("a")).st_gid, 1234U);
    }
    fs::remove(path("a"));
  }
  const mode_t before = ::umask(027);
  write_text_file(path("new"), "new");
  ::umask(before);
  EXPECT_EQ(status_of(path("new")).st_mode & 07777, 0640U) << "a new file follows the umask";
}

TEST_F(FileTest, GoesBackToWhatItWrote) {
  const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  AtomicFile file(path("a"));
  file.write("0123456789");
  file.overwrite(2, bytes("ab"));
  file.overwrite(9, bytes("z"));
  file.overwrite(10, {});
  file.write("tail");
  std::array<std::byte, 4> back{};
  file.read_back(1, back);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(back.data()), back.size()), "1ab4");
  for (const uint64_t offset : {uint64_t{11}, uint64_t{14}, UINT64_MAX - 1}) {
    EXPECT_NE(message_of([&] { file.read_back(offset, back); }).find("the 14 bytes that were written"),
              std::string::npos);
    EXPECT_NE(message_of([&] { file.overwrite(offset, back); }).find("the 14 bytes that were written"),
              std::string::npos);
  }
  file.commit();
  EXPECT_EQ(read_text_file(path("a")), "01ab45678ztail");
  AtomicFile device("/dev/null");
  device.write("0123456789");
  EXPECT_NE(message_of([&] { device.overwrite(0, back); }).find("it is not a regular file"), std::string::npos);
}

TEST_F(FileTest, EmptyFileMapsToNothing) {
  write_text_file(path("empty"), "");
  EXPECT_EQ(MappedFile(path("empty")).bytes().size(), 0U);
}

TEST_F(FileTest, ErrorsNameThePathAndTheReason) {
  EXPECT_THROW(MappedFile(path("missing")), c10::ValueError);
  EXPECT_NE(message_of([&] { MappedFile file(path("missing")); }).find("No such file"), std::string::npos);
  EXPECT_NE(message_of([&] { MappedFile file(folder); }).find("expected a file, found a folder"), std::string::npos);
  write_text_file(path("file"), "x");
  const std::string below_a_file = path("file") + "/under";
  EXPECT_NE(message_of([&] { AtomicFile file(below_a_file); }).find("Not a directory"), std::string::npos);
  EXPECT_NE(message_of([&] { AtomicFile file(path("no/such/folder")); }).find("must exist and be writable"),
            std::string::npos);
}

// RLIMIT_FSIZE stands in for a full disk: the same path through write(2)'s error.
TEST_F(FileTest, FullDiskKeepsTheOldFile) {
  write_text_file(path("a"), "old");
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string message = message_of([&] { write_text_file(path("a"), std::string(100'000, 'x')); });
    ::_exit(message.find("at byte 4096: File too large") != std::string::npos ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_text_file(path("a")), "old");
  EXPECT_EQ(entries(), 1U);
}

TEST_F(FileTest, LinksStayLinks) {
  write_text_file(path("target"), "old");
  fs::create_symlink("target", path("link"));
  write_text_file(path("link"), "new");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(read_text_file(path("target")), "new");
  fs::create_symlink("later", path("dangling"));
  write_text_file(path("dangling"), "made");
  EXPECT_TRUE(fs::is_symlink(path("dangling")));
  EXPECT_EQ(read_text_file(path("later")), "made");
}

TEST_F(FileTest, PipesAndDevicesAreWrittenToNotReplaced) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const int reader = ::open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  write_text_file(path("pipe"), "through");
  char buffer[16] = {};
  EXPECT_EQ(::read(reader, buffer, sizeof buffer), 7);
  EXPECT_STREQ(buffer, "through");
  ::close(reader);
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
  write_text_file("/dev/null", "nowhere");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_NE(message_of([] { write_text_file("/dev/full", "x"); }).find("No space left"), std::string::npos);
}

TEST_F(FileTest, TextComesOutOfAPipeButNothingIsMappedFromOne) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_NE(message_of([&] { MappedFile file(path("pipe")); }).find("expected a regular file"), std::string::npos);
  const pid_t child = ::fork();
  if (child == 0) {
    write_text_file(path("pipe"), "model: mlp");
    ::_exit(0);
  }
  EXPECT_EQ(read_text_file(path("pipe")), "model: mlp");
  ::waitpid(child, nullptr, 0);
  EXPECT_NE(message_of([] { read_text_file("/dev/zero"); }).find("a short text was expected"), std::string::npos);
}

TEST_F(FileTest, AWaitForTheWriterOfAPipeEndsWithAStop) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  std::thread stopper([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    request_stop();
  });
  std::string said;
  try {
    read_text_file(path("pipe"));
  } catch (const Stopped& stopped) {
    said = stopped.what();
  }
  stopper.join();
  EXPECT_EQ(said, "stopped on request while waiting for text from " + path("pipe") + ".");
  EXPECT_THROW(AtomicFile file(path("pipe")), Stopped) << "there is no reader, either";
  clear_stop();
}

TEST_F(FileTest, TextOfAPipeMayComeLateAndInParts) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  std::thread writer([name = path("pipe")] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const int fd = ::open(name.c_str(), O_WRONLY | O_CLOEXEC);  // waits for the reader
    for (const char* part : {"model: ", "mlp"}) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      EXPECT_GT(::write(fd, part, std::strlen(part)), 0);
    }
    ::close(fd);
  });
  EXPECT_EQ(read_text_file(path("pipe")), "model: mlp");
  writer.join();
}

TEST_F(FileTest, ACutFileIsNoticedAReplacedOneIsNot) {
  write_text_file(path("a"), "0123456789");
  const MappedFile file(path("a"));
  file.check_size();
  write_text_file(path("a"), "new");  // another file under the name: the mapped one lives on
  file.check_size();
  EXPECT_EQ(file.bytes().size(), 10U);
  const MappedFile cut(path("a"));
  fs::resize_file(path("a"), 1);
  EXPECT_NE(message_of([&] { cut.check_size(); }).find("It had 3 bytes, and it now has 1"), std::string::npos);
}

TEST_F(FileTest, KilledWriterLeavesTheOldOrTheNewFile) {
  write_text_file(path("a"), std::string(1 << 20, '0'));
  for (int round = 1; round <= 8; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (char c = 'a';; c = c == 'z' ? 'a' : static_cast<char>(c + 1))
        write_text_file(path("a"), std::string(1 << 20, c));
    }
    ::usleep(3000 * round);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const std::string text = read_text_file(path("a"));
    ASSERT_EQ(text.size(), size_t{1} << 20);
    ASSERT_EQ(text.find_first_not_of(text[0]), std::string::npos) << "a mixture of two writes";
  }
}

}  // namespace bellows
