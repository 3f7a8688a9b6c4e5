#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <c10/util/hash.h>

#include "bellows/compile/jit/kernel_cache.h"
#include "tests/compile/kernel_cache_support.h"

namespace bellows::compile_detail::testing {
namespace {

TEST(KernelCacheTest, CompilesOnceAndFindsItAgain) {
  const Folder folder;
  KernelCache first({.folder = folder.path});
  const auto library = first.load(source(7));
  EXPECT_EQ(number_in(*library), 7);
  EXPECT_EQ(first.load(source(7)), library);
  EXPECT_EQ(first.counts().compiled, 1);
  EXPECT_EQ(first.counts().shared, 1);
  KernelCache second({.folder = folder.path});
  EXPECT_EQ(load_number(second, 7), 7);
  EXPECT_EQ(load_number(second, 8), 8);
  EXPECT_EQ(second.counts().from_disk, 1);
  EXPECT_EQ(second.counts().compiled, 1);
}

TEST(KernelCacheTest, NeverLoadsWhatIsNotWhole) {
  const Folder folder;
  const fs::path entry = make_entry(folder, 7);
  const std::string whole = read_bytes(entry);
  std::string altered = whole;
  altered[altered.size() / 2] ^= 1;
  for (const std::string& bad : {std::string(), whole.substr(0, 30), whole.substr(0, whole.size() - 1), altered}) {
    write_bytes(entry, bad);
    KernelCache cache({.folder = folder.path});
    EXPECT_EQ(load_number(cache, 7), 7);
    EXPECT_EQ(cache.counts().compiled, 1) << bad.size();
    EXPECT_EQ(cache.counts().refused, 1) << bad.size();
    EXPECT_EQ(read_bytes(entry).size(), whole.size()) << "was not mended";
  }
}

TEST(KernelCacheTest, NeverLoadsAnEntryOfAnotherNameOrUser) {
  const Folder folder;
  const fs::path seven = make_entry(folder, 7);
  KernelCache maker({.folder = folder.path});
  load_number(maker, 8);
  for (const fs::path& entry : folder.entries()) {
    if (entry != seven) write_bytes(entry, read_bytes(seven));
  }
  KernelCache cache({.folder = folder.path});
  EXPECT_EQ(load_number(cache, 8), 8);
  EXPECT_EQ(cache.counts().refused, 1);
  fs::permissions(seven, fs::perms::others_write, fs::perm_options::add);
  KernelCache another({.folder = folder.path});
  EXPECT_EQ(load_number(another, 7), 7);
  EXPECT_EQ(another.counts().refused, 1);
}

TEST(KernelCacheTest, IsSharedByProcessesAtOnce) {
  const Folder folder;
  const auto work = [&] {
    KernelCache cache({.folder = folder.path});
    for (int i = 0; i < 4; ++i) {
      if (load_number(cache, i) != i) return 1;
    }
    return cache.counts().refused == 0 ? 0 : 2;
  };
  int other = -1;
  const int status = in_child(work, [&](pid_t) { other = work(); });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(other, 0);
  EXPECT_EQ(folder.entries().size(), 4u);
}

TEST(KernelCacheTest, SurvivesAKill) {
  const Folder folder;
  for (const int after_ms : {30, 120, 250, 400}) {
    in_child(
        [&] {
          KernelCache cache({.folder = folder.path});
          for (int i = 0;; ++i) load_number(cache, 100 + i);
          return 0;
        },
        [&](pid_t child) {
          std::this_thread::sleep_for(std::chrono::milliseconds(after_ms));
          ::kill(child, SIGKILL);
        });
  }
  KernelCache cache({.folder = folder.path});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(load_number(cache, 100 + i), 100 + i);
  EXPECT_EQ(cache.counts().refused, 0);
}

/// A pipe blocks whoever opens it plainly, on either side.
TEST(KernelCacheTest, NeverWaitsForWhatIsNoFile) {
  const Folder folder;
  const fs::path entry = make_entry(folder, 7);
  fs::remove(folder.path + "/.lock");
  ASSERT_EQ(::mkfifo((folder.path + "/.lock").c_str(), 0600), 0);
  const std::vector<std::function<void()>> puts{
      [&] { ::mkfifo(entry.c_str(), 0600); }, [&] { fs::create_directory(entry); },
      [&] { fs::create_symlink("/dev/zero", entry); }, [&] { fs::create_symlink(entry, entry); }};
  for (size_t i = 0; i < puts.size(); ++i) {
    fs::remove(entry);
    puts[i]();
    const int status = in_child([&] {
      ::alarm(60);
      KernelCache cache({.folder = folder.path});
      return load_number(cache, 7) == 7 && cache.counts().compiled == 1 ? 0 : 1;
    });
    EXPECT_EQ(status, 0) << "put " << i;
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(entry))) << "put " << i;
  }
}

bool is_running(pid_t process) {
  std::ifstream file(c10::str("/proc/", process, "/stat"));
  std::string number, name, state;
  return file >> number >> name >> state && state != "Z";
}

/// A compiler that has a child of its own, as g++ has, which would go on for minutes.
std::string write_slow_compiler(const Folder& folder) {
  const std::string path = folder.path + "/compiler";
  write_bytes(path,
              c10::str("#!/bin/sh\n[ \"$1\" = --version ] && echo slow 1 && exit\nsleep 300 & echo $! >", folder.path,
                       "/started.tmp; mv ", folder.path, "/started.tmp ", folder.path, "/started; wait\n"));
  fs::permissions(path, fs::perms::owner_all);
  return path;
}

/// Waits for the process that the slow compiler started, and calls `end`. Returns whether the process ends.
bool ends_compiler(const Folder& folder, const std::function<void()>& end) {
  const auto wait_until = [](const auto& is_so) {
    for (int i = 0; i < 1000 && !is_so(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return is_so();
  };
  pid_t process = 0;
  const bool started =
      wait_until([&] { return static_cast<bool>(std::ifstream(folder.path + "/started") >> process); });
  const bool ran = started && is_running(process);
  end();
  return ran && wait_until([&] { return !is_running(process); });
}

TEST(KernelCacheTest, CompilersEndWithTheProcessThatIsKilled) {
  const Folder folder;
  const std::string compiler = write_slow_compiler(folder);
  bool ended = false;
  const int status = in_child(
      [&] {
        ::setenv("BELLOWS_CXX", compiler.c_str(), 1);
        ::setenv("TMPDIR", folder.path.c_str(), 1);
        KernelCache cache({.folder = folder.path});
        load_number(cache, 7);
        return 0;
      },
      [&](pid_t child) { ended = ends_compiler(folder, [&] { ::kill(child, SIGKILL); }); });
  EXPECT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_TRUE(ended);
  for (const auto& item : fs::directory_iterator(folder.path))
    EXPECT_EQ(item.path().filename().string().find("bellows-kernel-"), std::string::npos) << "left behind";
}

TEST(KernelCacheTest, CompilersEndWhenTheyAreStopped) {
  const Folder folder;
  const std::string compiler = write_slow_compiler(folder);
  bool ended = false;
  const int status = in_child(
      [&] {
        ::setenv("BELLOWS_CXX", compiler.c_str(), 1);
        KernelCache cache({.folder = folder.path});
        std::stop_source stop;
        std::jthread stopper([&] {
          while (!fs::exists(folder.path + "/stop")) std::this_thread::sleep_for(std::chrono::milliseconds(10));
          stop.request_stop();
        });
        try {
          cache.load(source(7), stop.get_token());
        } catch (const c10::Error& error) {
          return std::string(error.what()).find("stopped") != std::string::npos ? 0 : 1;
        }
        return 2;
      },
      [&](pid_t) { ended = ends_compiler(folder, [&] { write_bytes(folder.path + "/stop", ""); }); });
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(ended);
}

TEST(KernelCacheTest, WorksWithoutAFolderThatCanBeWritten) {
  const Folder folder;
  write_bytes(folder.path + "/file", "no folder");
  KernelCache in_file({.folder = folder.path + "/file"});
  EXPECT_EQ(load_number(in_file, 7), 7);
  EXPECT_EQ(in_file.counts().compiled, 1);
  KernelCache in_proc({.folder = "/proc/kernels"});
  EXPECT_EQ(load_number(in_proc, 7), 7);
}

TEST(KernelCacheTest, WorksOnAFullDisk) {
  const Folder folder;
  if (::mount("tmpfs", folder.path.c_str(), "tmpfs", 0, "size=64k") != 0) {
    KernelCache none({.folder = "/dev/full"});  // the nearest that a user without rights can have
    EXPECT_EQ(load_number(none, 7), 7);
    return;
  }
  write_bytes(folder.path + "/filler", std::string(60000, 'x'));
  KernelCache cache({.folder = folder.path});
  EXPECT_EQ(load_number(cache, 7), 7);
  EXPECT_THAT(folder.entries(), ::testing::IsEmpty());
  ::umount(folder.path.c_str());
}

TEST(KernelCacheTest, KeepsItsLimit) {
  const Folder folder;
  const auto one = static_cast<int64_t>(fs::file_size(make_entry(folder, 0)));
  KernelCache cache({.folder = folder.path, .limit_bytes = 3 * one + one / 2});
  for (int i = 1; i < 6; ++i) load_number(cache, i);
  EXPECT_EQ(folder.entries().size(), 3u);
  EXPECT_EQ(cache.counts().evicted, 3);
  KernelCache again({.folder = folder.path});
  load_number(again, 5);
  EXPECT_EQ(again.counts().from_disk, 1) << "the newest was removed";
}

TEST(KernelCacheTest, SaysThatThereIsNoCompiler) {
  const Folder folder;
  const int status = in_child([&] {
    ::setenv("PATH", folder.path.c_str(), 1);
    ::unsetenv("BELLOWS_CXX");
    KernelCache cache({.folder = folder.path});
    if (cache.can_compile()) return 1;
    try {
      cache.load(source(1));
    } catch (const c10::Error& error) {
      return std::string(error.what()).find("no C++ compiler") != std::string::npos ? 0 : 2;
    }
    return 4;
  });
  EXPECT_EQ(status, 0);
}

TEST(KernelCacheTest, SaysWhatTheCompilerSays) {
  const Folder folder;
  KernelCache cache({.folder = folder.path});
  try {
    cache.load("int broken(");
    FAIL() << "compiled";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("error"));
  }
  std::stop_source stop;
  stop.request_stop();
  EXPECT_THROW(cache.load(source(1), stop.get_token()), c10::Error);
}

}  // namespace
}  // namespace bellows::compile_detail::testing
