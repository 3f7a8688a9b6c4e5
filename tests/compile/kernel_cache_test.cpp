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

#include "bellows/compile/kernel_cache.h"
#include "tests/support/captured_log.h"

namespace bellows::compile_detail::testing {
namespace {

namespace fs = std::filesystem;

/// A folder that is gone afterwards.
struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "kernel-cache-test-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  std::vector<fs::path> entries() const {
    std::vector<fs::path> result;
    for (const auto& item : fs::directory_iterator(path)) {
      if (item.path().extension() == ".so") result.push_back(item.path());
    }
    return result;
  }
  std::string path;
};

std::string source(int number) {
  return c10::str("extern \"C\" int number() { return ", number, "; }\n");
}

int number_in(const Library& library) {
  return reinterpret_cast<int (*)()>(library.symbol("number"))();
}

int load_number(KernelCache& cache, int number) {
  return number_in(*cache.load(source(number)));
}

/// The file of a kernel, in a folder that had none.
fs::path make_entry(const Folder& folder, int number) {
  KernelCache cache({.folder = folder.path});
  load_number(cache, number);
  return folder.entries().at(0);
}

void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

std::string read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Runs a function in a child process. Returns its status as waitpid() has it.
int in_child(const std::function<int()>& function, const std::function<void(pid_t)>& meanwhile = {}) {
  const pid_t child = ::fork();
  if (child == 0) {
    int result = 3;
    try {
      result = function();
    } catch (...) {
    }
    ::_exit(result);
  }
  if (meanwhile) meanwhile(child);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

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
