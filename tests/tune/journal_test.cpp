#include "bellows/tune/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "bellows/core/error.h"
#include "bellows/system/file.h"
#include "tests/support/temporary_folder.h"

namespace bellows::tune {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class JournalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Journal journal(path_);
    journal.append(R"({"a":1})", false);
    journal.append(R"({"b":"two"})", true);
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "trials.jsonl";
};

}  // namespace

TEST_F(JournalTest, ReadsItsEntries) {
  // The checksum is from Python's zlib.crc32.
  EXPECT_THAT(read_text_file(path_), ::testing::StartsWith("{\"crc32\":\"561bacaf\",\"entry\":{\"a\":1}}\n"));
  Journal journal(path_);
  EXPECT_THAT(journal.entries(), ElementsAre(R"({"a":1})", R"({"b":"two"})"));
  journal.append("{}", false);
  EXPECT_EQ(Journal(path_).entries().size(), 3u);
}

// A killed process can leave any prefix of its last line.
TEST_F(JournalTest, RemovesAnIncompleteLine) {
  const std::string whole = read_text_file(path_);
  const size_t second = whole.find('\n') + 1;
  for (size_t size = second; size < whole.size() - 1; ++size) {
    std::ofstream(path_) << whole.substr(0, size);
    Journal journal(path_);
    EXPECT_THAT(journal.entries(), ElementsAre(R"({"a":1})"));
    journal.append(R"({"b":"two"})", false);
    EXPECT_EQ(read_text_file(path_), whole);
  }
}

TEST_F(JournalTest, KeepsALastLineWhoseLineBreakIsMissing) {
  const std::string whole = read_text_file(path_);
  std::ofstream(path_) << whole.substr(0, whole.size() - 1);
  EXPECT_EQ(Journal(path_).entries().size(), 2);
  EXPECT_EQ(read_text_file(path_), whole);
}

TEST_F(JournalTest, LeavesOtherFilesAlone) {
  std::ofstream(path_) << "other text";
  EXPECT_THROW(Journal{path_}, c10::ValueError);
  EXPECT_EQ(read_text_file(path_), "other text");
}

TEST_F(JournalTest, NamesTheDamagedLine) {
  const std::string whole = read_text_file(path_);
  for (const size_t at : {size_t{3}, size_t{12}, whole.find('a'), whole.find('\n') - 1}) {
    std::string damaged = whole;
    damaged[at] ^= 1;
    std::ofstream(path_) << damaged;
    try {
      const Journal journal(path_);
      ADD_FAILURE() << "byte " << at;
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(user_message(error), HasSubstr("line 1: the line is damaged, because its checksum does not match"));
    }
  }
}

TEST_F(JournalTest, AFullDiskLosesNoEntry) {
  signal(SIGXFSZ, SIG_IGN);
  Journal journal(path_);
  const std::string before = read_text_file(path_);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  rlimit small = limit;
  small.rlim_cur = before.size() + 10;
  setrlimit(RLIMIT_FSIZE, &small);
  std::string message;
  try {
    journal.append(R"({"c":3})", false);
  } catch (const c10::Error& error) {
    message = user_message(error);
  }
  setrlimit(RLIMIT_FSIZE, &limit);
  EXPECT_THAT(message, HasSubstr("The finished trials are safe. Free disk space"));
  EXPECT_EQ(read_text_file(path_), before);
  journal.append(R"({"c":3})", false);
  EXPECT_EQ(Journal(path_).entries().size(), 3u);
}

TEST(Journal, NeedsAWritableFolder) {
  EXPECT_THROW(Journal("/nonexistent/trials.jsonl"), c10::Error);
}

}  // namespace bellows::tune
