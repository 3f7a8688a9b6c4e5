// Who may write where compiled kernels are kept: code of another user must never be loaded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include <c10/util/Exception.h>
#include <c10/util/hash.h>

#include "tests/compile/kernel_cache_support.h"
#include "tests/support/captured_log.h"

namespace bellows::compile_detail::testing {
namespace {

/// Puts another kernel's code in the place of one, with the digest that it must have: what an attacker who can write there does.
void forge(const fs::path& entry, const fs::path& other) {
  constexpr size_t digits = 40;
  const std::string content = read_bytes(other).substr(0, read_bytes(other).size() - digits);
  write_bytes(entry, content + c10::sha1(entry.stem().string() + content).str());
}

/// A folder that holds kernel 7, with the code of kernel 8 in it.
struct ForgedFolder : Folder {
  ForgedFolder() {
    entry = make_entry(*this, 7);
    KernelCache maker({.folder = path});
    load_number(maker, 8);
    for (const fs::path& other : entries()) {
      if (other != entry) forge(entry, other);
    }
  }
  /// The number that a new cache's kernel 7 gives.
  int number() const {
    KernelCache cache({.folder = path});
    return load_number(cache, 7);
  }
  fs::path entry;
};

TEST(KernelCacheTest, NeverLoadsAnEntryThatOthersCanWrite) {
  const ForgedFolder folder;
  ASSERT_EQ(folder.number(), 8) << "the forged entry is not valid, so the test proves nothing";
  fs::permissions(folder.entry, fs::perms::group_write, fs::perm_options::add);
  EXPECT_EQ(folder.number(), 7);
  EXPECT_EQ(fs::status(folder.entry).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(folder.number(), 7) << "the entry was not replaced";
}

TEST(KernelCacheTest, NeverLoadsWhatAnotherUserOwns) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  const ForgedFolder entry_of_other, folder_of_other;
  ASSERT_EQ(::chown(entry_of_other.entry.c_str(), 12345, 0), 0);
  EXPECT_EQ(entry_of_other.number(), 7);
  KernelCache next({.folder = entry_of_other.path});
  EXPECT_EQ(load_number(next, 7), 7);
  EXPECT_EQ(next.counts().from_disk, 1) << "the entry was given back to the other user, and is compiled each time";
  ASSERT_EQ(::chown(folder_of_other.path.c_str(), 12345, 0), 0);
  EXPECT_EQ(folder_of_other.number(), 7);
}

TEST(KernelCacheTest, UsesNoFolderThatOthersCanReplace) {
  const ForgedFolder outside;
  const std::string inside = outside.path + "/kernels";
  fs::create_directory(inside);
  fs::permissions(inside, fs::perms::owner_all);
  const fs::path entry = inside / outside.entry.filename();
  fs::copy_file(outside.entry, entry);
  fs::permissions(entry, fs::perms::owner_read | fs::perms::owner_write);
  fs::permissions(outside.path, fs::perms::group_write, fs::perm_options::add);
  const CapturedLog log;
  KernelCache cache({.folder = inside});
  EXPECT_EQ(load_number(cache, 7), 7);
  EXPECT_THAT(log.text(), ::testing::HasSubstr("chmod go-w '" + outside.path + "'"));
}

TEST(KernelCacheTest, MakesWhatOnlyItsUserCanRead) {
  const Folder folder;
  const mode_t before = ::umask(0);
  const std::string path = folder.path + "/a/kernels";
  KernelCache cache({.folder = path});
  EXPECT_EQ(load_number(cache, 7), 7);
  fs::permissions(path, fs::perms::all);  // as earlier versions left it
  EXPECT_EQ(load_number(cache, 8), 8);
  ::umask(before);
  for (const std::string& made : {folder.path + "/a", path})
    EXPECT_EQ(fs::status(made).permissions(), fs::perms::owner_all) << made;
  int entries = 0;
  for (const auto& item : fs::directory_iterator(path)) {
    if (item.path().extension() != ".so") continue;
    EXPECT_EQ(item.status().permissions(), fs::perms::owner_read | fs::perms::owner_write) << item.path();
    ++entries;
  }
  EXPECT_EQ(entries, 2);
}

TEST(KernelCacheTest, CompilesInNoFolderWhereOthersCanReplaceFiles) {
  const Folder folder;
  fs::permissions(folder.path, fs::perms::group_write, fs::perm_options::add);
  const int status = in_child([&] {
    ::setenv("TMPDIR", folder.path.c_str(), 1);
    ::setenv("BELLOWS_CXX", (folder.path + "/compiler").c_str(), 1);
    write_bytes(folder.path + "/compiler", "#!/bin/sh\necho \"$TMPDIR\" >> \"$0\".said; exec g++ \"$@\"\n");
    fs::permissions(folder.path + "/compiler", fs::perms::owner_all);
    KernelCache cache({.folder = folder.path + "/kernels"});
    return load_number(cache, 7) == 7 ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
  const std::string said = read_bytes(folder.path + "/compiler.said");
  EXPECT_FALSE(said.empty());
  EXPECT_THAT(said, ::testing::Not(::testing::HasSubstr(folder.path)));
}

}  // namespace
}  // namespace bellows::compile_detail::testing
