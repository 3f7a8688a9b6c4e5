#include <gmock/gmock.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <span>

#include "bellows/core/log.h"
#include "bellows/io/crc32.h"
#include "tests/data/cache_support.h"
#include "tests/support/errors.h"

namespace bellows::io::testing {
namespace {

using ::testing::HasSubstr;

/// What is noted of a file's content is that of the file, whatever way it came.
class CacheChecksum : public FileCacheTest {
 protected:
  CacheChecksum() {
    for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7 + i / 251);
  }
  /// Opens it to its end.
  void expect_whole(const std::string& path) {
    FileCache cache(options());
    ASSERT_TRUE(as_text(cache.open(server.url(path)).content->bytes()) == content) << path;
    const auto note = nlohmann::json::parse(
        read_text_file(folder / ("cache/files/" + CacheFolder::key_of(server.url(path)) + ".json")));
    EXPECT_EQ(note.at("crc32c"), crc32c(as_bytes(content))) << path;
  }
  /// Fails after the first bytes.
  std::string begin(const std::string& path) {
    FileCache cache(options());
    return message_of([&] { cache.open(server.url(path)); });
  }
  int64_t requests(const std::string& path, const std::string& range) const {
    const auto served = server.served();
    return std::ranges::count_if(served, [&](const auto& one) { return one.path == path && one.range == range; });
  }
  std::string content = std::string(300'000, '\0');
};

TEST_F(CacheChecksum, OfAFileWhoseConnectionBroke) {
  server.put("/f", content);
  for (const int64_t bytes : {100'000, 50'000}) server.fault("/f", {.drop_after = bytes});
  expect_whole("/f");
  EXPECT_EQ(requests("/f", "bytes=150000-"), 1) << "the rest, in the same fetch";
}

TEST_F(CacheChecksum, OfAFileWithoutRanges) {
  server.put_file("/f", {.content = content, .ranges = false});
  for (const int64_t bytes : {100'000, 50'000}) server.fault("/f", {.drop_after = bytes});
  expect_whole("/f");
  EXPECT_EQ(server.body_bytes("/f"), 450'000) << "from its beginning each time";
}

TEST_F(CacheChecksum, OfAFileThatAnotherProcessBegan) {
  for (const bool ranges : {true, false}) {
    const std::string path = ranges ? "/ranges" : "/none";
    server.put(path, content);
    for (int i = 0; i < 3; ++i) server.fault(path, {.drop_after = 30'000});
    EXPECT_THAT(begin(path), HasSubstr("(90000 of 300000 bytes are already downloaded)"));
    server.put_file(path, {.content = content, .ranges = ranges});
    server.fault(path, {.drop_after = 70'000});  // and the second one breaks, too
    expect_whole(path);
    EXPECT_EQ(requests(path, "bytes=90000-"), 1);
    EXPECT_EQ(requests(path, ranges ? "bytes=160000-" : "bytes=70000-"), 1);
  }
}

TEST_F(CacheChecksum, OfAFileThatTheDiskHadNoRoomFor) {
  server.put("/f", content);
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{100'001, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = begin("/f");
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, before);
  EXPECT_THAT(message, HasSubstr("at byte 100001: File too large"));
  expect_whole("/f");
  EXPECT_EQ(requests("/f", "bytes=100001-"), 1);
}

struct WarningKeeper final : LogSink {
  void write(LogLevel level, std::string_view message) override {
    if (level == LogLevel::warn) text += message;
  }
  std::string text;
};

TEST_F(FileCacheTest, FetchesAnewWhatIsDamaged) {
  const std::string good = bytes_of('x', 5000), bad = bytes_of('x', 4000) + "y" + bytes_of('x', 999);
  server.put("/f", good);
  FileCache(options()).open(server.url("/f"));
  const std::string path = folder / ("cache/files/" + files().front());
  write_text_file(path, bad);
  const auto warnings = std::make_shared<WarningKeeper>();
  set_log_sink(warnings);
  EXPECT_EQ(as_text(FileCache(options()).open(server.url("/f")).content->bytes()), good);
  set_log_sink(make_default_log_sink());
  EXPECT_THAT(warnings->text, HasSubstr("the copy of " + server.url("/f") + " in " + path + " is damaged"));
  EXPECT_EQ(server.body_bytes("/f"), 10'000);
  EXPECT_EQ(files().size(), 1U);
  write_text_file(path, bad);
  FileCache cache(options());
  cache.look(server.url("/f"));
  std::string out(10, '?');
  cache.read(server.url("/f"), 3995, std::as_writable_bytes(std::span(out)));
  EXPECT_EQ(out, bytes_of('x', 10)) << "what is read in parts, too";
  EXPECT_EQ(as_text(cache.open(server.url("/f")).content->bytes()), good);
}

TEST_F(FileCacheTest, AnotherOneFetchesAnewWhatIsDoubted) {
  const std::string url = server.url("/f"), good = bytes_of('x', 5000), bad = bytes_of('y', 5000);
  server.put("/f", bad);
  FileCache first(options());
  EXPECT_EQ(first.doubt(url, first.look(url)).path, "") << "none is here";
  const HttpFile version = first.open(url).version;
  const std::string path = folder / ("cache/files/" + files().front());
  EXPECT_EQ(first.doubt(url, {version.size, "\"v2\"", ""}).path, "");
  EXPECT_EQ(as_text(FileCache(options()).open(url).content->bytes()), bad) << "nobody doubts it yet";
  EXPECT_EQ(first.doubt(url, version).path, path);
  server.put("/f", good);
  EXPECT_EQ(as_text(first.open(url).content->bytes()), bad) << "who doubted it goes on with it";
  server.always("/f", {.status = 503});
  EXPECT_EQ(as_text(FileCache(options()).open(url).content->bytes()), bad) << "there is nothing better";
  server.always("/f", {});
  const auto warnings = std::make_shared<WarningKeeper>();
  set_log_sink(warnings);
  EXPECT_EQ(as_text(FileCache(options()).open(url).content->bytes()), good);
  set_log_sink(make_default_log_sink());
  EXPECT_THAT(warnings->text, HasSubstr("the copy of " + url + " in " + path + " could not be read"));
  const int64_t sent = server.body_bytes("/f");
  FileCache(options()).open(url);
  EXPECT_EQ(server.body_bytes("/f"), sent) << "the doubt went with the file";
  EXPECT_EQ(files().size(), 1U);
}

TEST_F(FileCacheTest, ADoubtedFileGoesBeforeItsNoteDoes) {
  const std::string url = server.url("/f"), good = bytes_of('x', 5000);
  server.put("/f", bytes_of('y', 5000));
  FileCache first(options());
  const CachedFile held = first.open(url);  // and so is not evicted
  first.doubt(url, held.version);
  server.put("/f", good);
  for (int i = 0; i < 3; ++i) server.fault("/f", {.drop_after = 1000});
  EXPECT_THAT(message_of([&] { FileCache(options()).open(url); }), HasSubstr("3 attempts failed"));
  EXPECT_EQ(as_text(FileCache(options()).open(url).content->bytes()), good);
}

TEST_F(FileCacheTest, TakesFilesWithoutAChecksum) {
  server.put("/f", bytes_of('x', 1000));
  FileCache(options()).open(server.url("/f"));
  write_text_file(folder / ("cache/files/" + files().front()), bytes_of('y', 1000));
  for (const auto& entry : std::filesystem::directory_iterator(folder / "cache/files")) {
    if (entry.path().extension() != ".json") continue;
    std::string note = read_text_file(entry.path());
    ASSERT_THAT(note, HasSubstr("crc32c"));
    write_text_file(entry.path(), note.replace(note.find("crc32c"), 6, "------"));
    break;
  }
  EXPECT_EQ(as_text(FileCache(options()).open(server.url("/f")).content->bytes()), bytes_of('y', 1000));
}

TEST_F(FileCacheTest, DoesNotTrustAPartThatIsTooLong) {
  server.put("/f", "0123456789");
  FileCache(options()).open(server.url("/f"));
  const std::string whole = folder / ("cache/files/" + files().front());
  std::filesystem::rename(whole, whole + ".part");
  std::filesystem::resize_file(whole + ".part", 11);
  EXPECT_EQ(as_text(FileCache(options()).open(server.url("/f")).content->bytes()), "0123456789");
  // One that has all bytes and only lacks its name is taken.
  std::filesystem::rename(whole, whole + ".part");
  EXPECT_EQ(as_text(FileCache(options()).open(server.url("/f")).content->bytes()), "0123456789");
  EXPECT_EQ(server.body_bytes("/f"), 20);
}

}  // namespace
}  // namespace bellows::io::testing
