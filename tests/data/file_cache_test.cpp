#include <gmock/gmock.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <optional>
#include <span>

#include "bellows/core/seed.h"
#include "tests/data/cache_support.h"
#include "tests/support/errors.h"

namespace bellows::io::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(FileCacheTest, FetchesOnceAndAsksOnceAProcess) {
  server.put("/f", bytes_of('x', 1000));
  for (int process = 0; process < 3; ++process) {
    FileCache cache(options());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(as_text(cache.open(server.url("/f")).content->bytes()), bytes_of('x', 1000));
  }
  EXPECT_EQ(server.body_bytes("/f"), 1000);
  EXPECT_EQ(server.served().size(), 3U);
  EXPECT_EQ(server.served().back().status, 304);
}

TEST_F(FileCacheTest, AsksOnceWhereThereAreNoValidators) {
  server.put_file("/f", {.content = bytes_of('x', 1000), .etag = ""});
  for (size_t process = 1; process <= 3; ++process) {
    FileCache cache(options());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(as_text(cache.open(server.url("/f")).content->bytes()), bytes_of('x', 1000));
    EXPECT_EQ(server.served().size(), process);
  }
}

TEST_F(FileCacheTest, FetchesAnewWhatChanged) {
  server.put("/f", "old");
  FileCache(options()).open(server.url("/f"));
  server.put_file("/f", {.content = "new!", .etag = "\"v2\""});
  FileCache cache(options());
  EXPECT_EQ(cache.look(server.url("/f")).etag, "\"v2\"");
  EXPECT_EQ(as_text(cache.open(server.url("/f")).content->bytes()), "new!");
  EXPECT_EQ(files().size(), 1U) << "the old version makes room";
}

TEST_F(FileCacheTest, TakesTheCopyWhenTheServerCannotBeReached) {
  server.put("/f", "text");
  FileCache(options()).open(server.url("/f"));
  server.always("/f", {.status = 503});
  FileCache cache(options());
  EXPECT_EQ(cache.look(server.url("/f")).size, 4U);
  EXPECT_EQ(as_text(cache.open(server.url("/f")).content->bytes()), "text");
  EXPECT_EQ(as_text(FileCache(options()).open(server.url("/f")).content->bytes()), "text");
  server.always("/g", {.status = 503});
  EXPECT_THAT(message_of([&] { cache.open(server.url("/g")); }), HasSubstr("3 attempts failed"));
}

TEST_F(FileCacheTest, ReadsPartsOfWhatIsNotHere) {
  server.put("/f", bytes_of('x', 5000) + bytes_of('y', 5000));
  FileCache cache(options());
  std::string out(10, '?');
  const auto read = [&](uint64_t offset) {
    cache.read(server.url("/f"), offset, std::as_writable_bytes(std::span(out)));
    return out;
  };
  EXPECT_EQ(read(4995), "xxxxxyyyyy");
  EXPECT_LE(server.body_bytes("/f"), 11);
  EXPECT_TRUE(files().empty());
  cache.open(server.url("/f"));
  EXPECT_EQ(read(0), "xxxxxxxxxx");
  EXPECT_LE(server.body_bytes("/f"), 10'011) << "from the folder";
  server.put_file("/f", {.content = "short", .etag = "\"v2\""});
  FileCache later(options());
  EXPECT_EQ(later.read(server.url("/f"), 100, std::as_writable_bytes(std::span(out))).size, 5U);
}

TEST_F(FileCacheTest, LeavesAFileOfAnotherSizeToWhoHoldsTheLock) {
  server.put("/f", bytes_of('x', 1000));
  FileCache(options()).open(server.url("/f"));
  const std::string path = folder / ("cache/files/" + files().front());
  std::filesystem::resize_file(path, 10);
  const CacheFolder cache_folder(folder / "cache/files", 1 << 20);
  EXPECT_EQ(cache_folder.map(CacheFolder::key_of(server.url("/f")), {1000, "\"v1\"", ""}), nullptr);
  EXPECT_EQ(std::filesystem::file_size(path), 10U);
  EXPECT_EQ(as_text(FileCache(options()).open(server.url("/f")).content->bytes()), bytes_of('x', 1000));
  EXPECT_EQ(files().size(), 1U);
}

/// Sets an environment variable, or removes it, until it goes out of scope.
class EnvironmentScope {
 public:
  EnvironmentScope(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~EnvironmentScope() { set(old_ ? old_->c_str() : nullptr); }
  EnvironmentScope(const EnvironmentScope&) = delete;
  EnvironmentScope& operator=(const EnvironmentScope&) = delete;

 private:
  void set(const char* value) const {
    if (value) {
      ::setenv(name_, value, 1);
    } else {
      ::unsetenv(name_);
    }
  }
  const char* name_;
  std::optional<std::string> old_;
};

TEST(CacheFolderDefault, FollowsTheEnvironment) {
  const EnvironmentScope home("HOME", "/home/a");
  {
    const EnvironmentScope chosen("BELLOWS_CACHE", "/chosen"), caches("XDG_CACHE_HOME", "/caches");
    EXPECT_EQ(cache_folder({}), "/chosen");
    EXPECT_EQ(cache_folder({.folder = "/option"}), "/option");
    ::setenv("BELLOWS_CACHE", "", 1);
    EXPECT_EQ(cache_folder({}), "/caches/bellows");
    ::unsetenv("BELLOWS_CACHE");
    EXPECT_EQ(cache_folder({}), "/caches/bellows");
    ::setenv("XDG_CACHE_HOME", "", 1);
    EXPECT_EQ(cache_folder({}), "/home/a/.cache/bellows");
    ::unsetenv("HOME");
    EXPECT_EQ(default_cache_folder(), "");
    EXPECT_THROW(cache_folder({}), c10::ValueError);
  }
}

TEST_F(FileCacheTest, DoesNotWriteThroughALink) {
  server.put("/f", bytes_of('x', 1000));
  FileCache(options()).open(server.url("/f"));
  const std::string whole = folder / ("cache/files/" + files().front()), victim = folder / "victim";
  const std::string mine = bytes_of('m', 1000);  // as many bytes as are missing: only the name is
  write_text_file(victim, mine);
  std::filesystem::remove(whole);
  std::filesystem::create_symlink(victim, whole + ".part");
  EXPECT_THAT(message_of([&] { FileCache(options()).open(server.url("/f")); }), HasSubstr(whole + ".part"));
  EXPECT_EQ(read_text_file(victim), mine);
  std::filesystem::resize_file(victim, 500);  // the rest would be written
  EXPECT_THAT(message_of([&] { FileCache(options()).open(server.url("/f")); }), HasSubstr(whole + ".part"));
  EXPECT_EQ(read_text_file(victim), mine.substr(500));
}

TEST_F(FileCacheTest, KeepsNoSecrets) {
  server.put("/f", "text");
  FileCache cache(options());
  cache.open(server.url("/f?X-Amz-Signature=SECRET"));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "cache")) {
    EXPECT_THAT(entry.path().string(), Not(HasSubstr("SECRET")));
    if (entry.is_directory()) continue;
    EXPECT_THAT(read_text_file(entry.path()), Not(HasSubstr("SECRET")));
  }
  FileCache(options()).open(server.url("/f?X-Amz-Signature=OTHER"));
  EXPECT_EQ(server.body_bytes("/f"), 4) << "another signature is the same file";
}

TEST_F(FileCacheTest, StaysUnderItsLimit) {
  FileCache cache(options(10'000));
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 20; ++i) {
      const std::string path = "/" + std::to_string(i), content = bytes_of(static_cast<char>('a' + i), 3000);
      server.put(path, content);
      EXPECT_EQ(as_text(cache.open(server.url(path)).content->bytes()), content);
      EXPECT_LE(bytes_here(), 10'000U);
    }
  }
  EXPECT_EQ(files().size(), 3U);
}

TEST_F(FileCacheTest, EvictsWhatWasNotUsedForLongest) {
  for (const char* path : {"/a", "/b", "/c", "/d"}) server.put(path, bytes_of('x', 3000));
  for (const char* path : {"/a", "/b", "/c", "/a", "/d"}) {
    FileCache cache(options(10'000));
    cache.open(server.url(path));
    std::this_thread::sleep_for(std::chrono::milliseconds(15));  // the kernel's clock ticks that slowly
  }
  for (const char* path : {"/a", "/c", "/d"}) FileCache(options(10'000)).open(server.url(path));
  EXPECT_EQ(server.body_bytes("/a") + server.body_bytes("/c") + server.body_bytes("/d"), 9000);
}

TEST_F(FileCacheTest, NeverEvictsWhatIsMapped) {
  for (const char* path : {"/a", "/b", "/c"}) server.put(path, bytes_of(path[1], 4000));
  FileCache mine(options(10'000)), other(options(10'000));
  const CachedFile a = mine.open(server.url("/a")), b = mine.open(server.url("/b"));
  EXPECT_THAT(
      message_of([&] { other.open(server.url("/c")); }),
      ::testing::AllOf(HasSubstr("there is no space for " + server.url("/c") + " (4000 bytes)"), HasSubstr("10000")));
  other.prefetch(server.url("/c"));
  EXPECT_EQ(files().size(), 2U);
  EXPECT_EQ(as_text(a.content->bytes()), bytes_of('a', 4000));
  server.put("/big", bytes_of('x', 10'001));
  EXPECT_THAT(message_of([&] { mine.open(server.url("/big")); }), HasSubstr("Raise cache_bytes"));
}

TEST_F(FileCacheTest, WaitsForRoom) {
  for (const char* path : {"/a", "/b", "/c"}) server.put(path, bytes_of(path[1], 4000));
  FileCache cache(options(10'000));
  auto a = std::make_optional(cache.open(server.url("/a")));
  const CachedFile b = cache.open(server.url("/b"));
  std::thread reader([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    a.reset();
  });
  EXPECT_EQ(as_text(cache.open(server.url("/c")).content->bytes()), bytes_of('c', 4000));
  reader.join();
}

TEST_F(FileCacheTest, ManyThreadsFetchAFileOnce) {
  server.put("/f", bytes_of('x', 100'000));
  server.always("/f", {.bytes_per_step = 20'000});
  FileCache one(options()), two(options());
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int i = 0; i < 8; ++i)
    threads.emplace_back(
        [&, i] { EXPECT_EQ((i % 2 ? one : two).open(server.url("/f")).content->bytes().size(), 100'000U); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(server.body_bytes("/f"), 100'000);
}

TEST_F(FileCacheTest, MendsDamagedNotesAndCutFiles) {
  server.put("/f", "0123456789");
  FileCache(options()).open(server.url("/f"));
  std::filesystem::resize_file(folder / ("cache/files/" + files().front()), 3);
  EXPECT_EQ(as_text(FileCache(options()).open(server.url("/f")).content->bytes()), "0123456789");
  for (const auto& entry : std::filesystem::directory_iterator(folder / "cache/files")) {
    if (entry.path().extension() == ".json") write_text_file(entry.path(), "{\"size\": \"no\"");
  }
  EXPECT_EQ(as_text(FileCache(options()).open(server.url("/f")).content->bytes()), "0123456789");
}

/// Runs `action` in a process of its own, which hears of the server only after it was made: it has one thread.
class Child {
 public:
  template <class F>
  explicit Child(const F& action) {
    if (::pipe(ends_) != 0) throw std::runtime_error("no pipe");
    pid_ = ::fork();
    if (pid_ != 0) return;
    std::string url(200, '\0');
    url.resize(static_cast<size_t>(std::max<ssize_t>(::read(ends_[0], url.data(), url.size()), 0)));
    int rc = 1;
    try {
      rc = action(url) ? 0 : 2;
    } catch (const std::exception&) {
    }
    ::_exit(rc);
  }
  ~Child() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  void start(const std::string& url) { EXPECT_GT(::write(ends_[1], url.data(), url.size()), 0); }
  void kill() { ::kill(pid_, SIGKILL); }
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  int ends_[2] = {-1, -1};
  pid_t pid_ = -1;
};

TEST(FileCacheProcesses, GoOnAfterAKill) {
  TemporaryFolder folder;
  const FileCacheOptions options{folder / "cache", 1 << 20, {.backoff_ms = 2}};
  Child child([&](const std::string& url) { return FileCache(options).open(url).content->bytes().size() == 400'000; });
  HttpServer server;
  std::string content = bytes_of('x', 400'000);
  for (size_t i = 0; i < content.size(); i += 7) content[i] = static_cast<char>('a' + i % 26);
  server.put("/f", content);
  server.fault("/f", {.bytes_per_step = 4000});
  child.start(server.url("/f"));
  const auto partial = [&] {
    uint64_t bytes = 0;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "cache/files", ignored))
      if (entry.path().extension() == ".part") bytes = std::filesystem::file_size(entry.path(), ignored);
    return bytes;
  };
  for (int i = 0; i < 1000 && partial() < 50'000; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  child.kill();
  EXPECT_EQ(child.wait(), -1);
  const uint64_t kept = partial();
  ASSERT_GE(kept, 50'000U);
  ASSERT_LT(kept, 400'000U);
  EXPECT_TRUE(as_text(FileCache(options).open(server.url("/f")).content->bytes()) == content);
  int64_t continued = 0;
  for (const auto& one : server.served()) continued += one.range == c10::str("bytes=", kept, "-") ? one.body_bytes : 0;
  EXPECT_EQ(continued, static_cast<int64_t>(400'000 - kept));
}

TEST(FileCacheProcesses, ShareAFolder) {
  TemporaryFolder folder;
  const FileCacheOptions options{folder / "cache", 120'000, {.backoff_ms = 2}};
  const auto read_all = [&](const std::string& base) {
    FileCache cache(options);
    for (int i = 0; i < 12; ++i) {
      const CachedFile file = cache.open(base + "/" + std::to_string(i));
      if (as_text(file.content->bytes()) != bytes_of(static_cast<char>('a' + i), 20'000)) return false;
    }
    return true;
  };
  std::vector<std::unique_ptr<Child>> children;
  children.reserve(3);
  for (int i = 0; i < 3; ++i) children.push_back(std::make_unique<Child>(read_all));
  HttpServer server;
  for (int i = 0; i < 12; ++i) {
    server.put("/" + std::to_string(i), bytes_of(static_cast<char>('a' + i), 20'000));
    server.always("/" + std::to_string(i), {.bytes_per_step = 5000});
  }
  for (auto& child : children) child->start(server.url());
  for (auto& child : children) EXPECT_EQ(child->wait(), 0);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(server.body_bytes("/" + std::to_string(i)), 20'000) << i;
}

TEST(FileCacheProcesses, SurviveRandomKills) {
  TemporaryFolder folder;
  const FileCacheOptions options{folder / "cache", 90'000, {.backoff_ms = 2}};
  constexpr int processes = 12, count = 6;
  const auto read_all = [&](const std::string& base) {
    FileCache cache(options);
    for (int round = 0;; ++round) {
      const int i = round % count;
      const CachedFile file = cache.open(base + "/" + std::to_string(i));
      if (as_text(file.content->bytes()) != bytes_of(static_cast<char>('a' + i), 30'000)) return false;
    }
  };
  std::vector<std::unique_ptr<Child>> children;
  children.reserve(static_cast<size_t>(processes));
  for (int i = 0; i < processes; ++i) children.push_back(std::make_unique<Child>(read_all));
  HttpServer server;
  for (int i = 0; i < count; ++i) {
    server.put("/" + std::to_string(i), bytes_of(static_cast<char>('a' + i), 30'000));
    server.always("/" + std::to_string(i), {.bytes_per_step = 9000});
  }
  RandomStream random(7);
  for (int i = 0; i < processes; i += 2) {  // two at a time
    children[static_cast<size_t>(i)]->start(server.url());
    children[static_cast<size_t>(i + 1)]->start(server.url());
    for (int which = 0; which < 2; ++which) {
      std::this_thread::sleep_for(std::chrono::milliseconds(random.below(120)));
      children[static_cast<size_t>(i + which)]->kill();
    }
    for (int which = 0; which < 2; ++which) EXPECT_EQ(children[static_cast<size_t>(i + which)]->wait(), -1);
  }
  FileCache cache(options);
  for (int i = 0; i < count; ++i)
    EXPECT_EQ(as_text(cache.open(server.url("/" + std::to_string(i))).content->bytes()),
              bytes_of(static_cast<char>('a' + i), 30'000));
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "cache/files"))
    bytes += entry.path().filename().string().find('-') == 40 ? entry.file_size() : 0;
  EXPECT_LE(bytes, 90'000U);
}

}  // namespace
}  // namespace bellows::io::testing
