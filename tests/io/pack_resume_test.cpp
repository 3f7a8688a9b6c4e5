#include <sys/stat.h>

#include <fstream>

#include "tests/fuzz/mutate.h"
#include "tests/io/pack_support.h"

namespace bellows::io {

namespace {

using namespace pack_testing;  // NOLINT: a test's own helpers

struct PackResumeTest : FolderTest {};

}  // namespace

// Whatever an interrupted writer left, the next one makes the same file of it.
TEST_F(PackResumeTest, InterruptedWriterGoesOn) {
  const Items items = many(150, 4);
  const std::string expected = write_pack(path("whole.pack"), items, small_pages);
  PackWriterOptions resumable = small_pages;
  resumable.resumable = true;
  int64_t most_kept = 0;
  for (size_t stop = 0; stop <= items.size(); stop += 7) {
    {
      PackWriter writer(path("a.pack"), resumable);
      for (size_t i = static_cast<size_t>(writer.size()); i < stop; ++i) add(writer, items[i]);
    }
    EXPECT_FALSE(std::filesystem::exists(path("a.pack")));
    PackWriter writer(path("a.pack"), resumable);
    EXPECT_LE(writer.size(), static_cast<int64_t>(stop));
    most_kept = std::max(most_kept, writer.size());
  }
  EXPECT_GT(most_kept, 100);
  PackWriter writer(path("a.pack"), resumable);
  EXPECT_GT(writer.size(), 100);
  for (size_t i = static_cast<size_t>(writer.size()); i < items.size(); ++i) add(writer, items[i]);
  writer.close();
  EXPECT_TRUE(slurp(path("a.pack")) == expected);
  EXPECT_FALSE(std::filesystem::exists(path("a.pack.partial")));
}

TEST_F(PackResumeTest, DamagedPartialFilesCostWorkAndNothingElse) {
  const Items items = many(60, 5);
  const std::string expected = write_pack(path("whole.pack"), items, small_pages);
  PackWriterOptions resumable = small_pages;
  resumable.resumable = true;
  std::mt19937_64 random(6);
  for (int round = 0; round < 150; ++round) {
    // Also whole packs: what kill -9 leaves between the last byte and the renaming.
    const Bytes whole(as_bytes(expected).begin(), as_bytes(expected).end());
    const Bytes partial = round < 2 ? whole : fuzz::mutate(whole, random);
    std::ofstream(path("a.pack.partial"), std::ios::binary) << as_text(partial);
    PackWriter writer(path("a.pack"), resumable);
    for (size_t i = static_cast<size_t>(writer.size()); i < items.size(); ++i) add(writer, items[i]);
    writer.close();
    ASSERT_TRUE(slurp(path("a.pack")) == expected) << "round " << round;
  }
}

TEST_F(PackResumeTest, KeepsThePermissionsOfAReplacedFile) {
  PackWriterOptions resumable = small_pages;
  resumable.resumable = true;
  for (const mode_t mode : {0600, 0660, 0444}) {
    std::ofstream(path("a.pack")) << "old";
    ASSERT_EQ(::chmod(path("a.pack").c_str(), mode), 0);
    PackWriter writer(path("a.pack"), resumable);
    add(writer, many(1, 4)[0]);
    writer.close();
    struct stat status {};
    ASSERT_EQ(::stat(path("a.pack").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, mode);
    std::filesystem::remove(path("a.pack"));
  }
}

TEST_F(PackResumeTest, OneWriterAtATime) {
  PackWriterOptions resumable{.resumable = true};
  PackWriter writer(path("a.pack"), resumable);
  try {
    PackWriter second(path("a.pack"), resumable);
    FAIL() << "two writers";
  } catch (const c10::Error& error) {
    EXPECT_TRUE(has(user_message(error), "another program is writing it"));
  }
}

}  // namespace bellows::io
