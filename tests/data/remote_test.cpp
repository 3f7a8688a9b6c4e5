#include <atomic>
#include <set>
#include <thread>

#include "bellows/core/log.h"
#include "bellows/data/formats/shard_pattern.h"
#include "tests/data/cache_support.h"
#include "tests/data/support.h"
#include "tests/support/errors.h"
#include "tests/support/http_server.h"

namespace bellows::data::testing {
namespace {

using bellows::testing::HttpFault;
using bellows::testing::HttpServer;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr io::HttpOptions impatient{
    .attempts = 2, .connect_timeout_ms = 1000, .stall_timeout_ms = 1000, .backoff_ms = 1};

/// Eight shards with three samples each behind a server, and a cache of the test's own.
class RemoteShards : public ::testing::Test {
 protected:
  static constexpr int64_t shards = 8, samples = 3;

  RemoteShards() {
    for (int64_t s = 0; s < shards; ++s) {
      const std::string path = folder / "shard.tar";
      std::vector<Member> members;
      members.reserve(static_cast<size_t>(samples));
      for (int64_t i = 0; i < samples; ++i)
        members.push_back({c10::str(s, "_", i, ".cls"), std::to_string(s * samples + i)});
      write_shard(path, members);
      server.put(c10::str("/d/", s, ".tar"), read_text_file(path));
    }
  }
  io::FileCacheOptions cache(int64_t limit = 1 << 20) const { return {folder / "cache", limit, impatient}; }
  SourcePtr open_all(int64_t limit = 1 << 20) const {
    const ShardFiles::CacheScope scope(cache(limit));
    return open_webdataset(expand_shards(server.url("/d/{0..7}.tar")));
  }
  static std::vector<std::string> labels(const Source& source) {
    std::vector<std::string> all;
    for (int64_t i = 0; i < source.size(); ++i) {
      const Sample sample = source.read(i);
      all.emplace_back(io::as_text(sample.find("cls")->bytes));
    }
    return all;
  }
  std::vector<std::string> numbers() const {
    std::vector<std::string> all;
    all.reserve(static_cast<size_t>(shards * samples));
    for (int64_t i = 0; i < shards * samples; ++i) all.push_back(std::to_string(i));
    return all;
  }
  int64_t bytes_sent() const {
    int64_t total = 0;
    for (const auto& one : server.served()) total += one.body_bytes;
    return total;
  }
  TemporaryFolder folder;
  HttpServer server;
};

TEST_F(RemoteShards, AreReadThroughTheCache) {
  const SourcePtr source = open_all();
  EXPECT_EQ(labels(*source), numbers());
  EXPECT_EQ(source->block_starts().size(), 8U);
  EXPECT_EQ(source->describe(), "8 shards (" + server.url("/d/0.tar") + ", …)");
  EXPECT_LE(bytes_sent(), shards * 10'240 + shards) << "each fetched once, and looked at";
  const int64_t before = bytes_sent();
  EXPECT_EQ(labels(*open_all()), numbers());
  EXPECT_LE(bytes_sent() - before, shards) << "looked at";
}

TEST_F(RemoteShards, OpenByTheirKeptIndexes) {
  open_all(20'480);
  const int64_t before = bytes_sent();
  const SourcePtr source = open_all(20'480);
  EXPECT_EQ(source->size(), shards * samples);
  EXPECT_LE(bytes_sent() - before, shards);
  EXPECT_EQ(labels(*source), numbers());
}

TEST_F(RemoteShards, ChangedOnesGetANewIndex) {
  open_all();
  write_shard(folder / "shard.tar", {{"a.cls", "70"}, {"b.cls", "71"}});
  server.put_file("/d/7.tar", {.content = read_text_file(folder / "shard.tar"), .etag = "\"v2\""});
  const SourcePtr source = open_all();
  EXPECT_EQ(source->size(), shards * samples - 1);
  EXPECT_EQ(labels(*source).back(), "71");
}

TEST_F(RemoteShards, StayUnderTheLimit) {
  const int64_t limit = 5 * 10'240;
  const SourcePtr source = open_all(limit);
  std::atomic<bool> done = false;
  std::thread watcher([&] {
    while (!done) {
      EXPECT_LE(io::testing::cached_bytes(folder / "cache/files"), limit);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  Dataset dataset(source);
  Loader loader = dataset.batch(4).threads(2).loader();
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::multiset<int64_t> seen;
    for (const Batch& batch : loader.epoch(epoch)) {
      for (const int64_t id : batch.ids()) seen.insert(id);
    }
    EXPECT_EQ(seen.size(), static_cast<size_t>(shards * samples));
    EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), seen.size());
  }
  done = true;
  watcher.join();
}

TEST_F(RemoteShards, AreFetchedAheadWhereTheyAreReadInOrder) {
  std::vector<std::string> urls;
  urls.reserve(static_cast<size_t>(shards));
  for (int64_t s = 0; s < shards; ++s) urls.push_back(server.url(c10::str("/d/", s, ".tar")));
  const ShardFiles::CacheScope scope(cache());
  const ShardFiles files(urls);
  files.map(0);
  for (int i = 0; i < 2000 && server.body_bytes("/d/1.tar") == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(server.body_bytes("/d/1.tar"), 10'240);
  EXPECT_EQ(server.body_bytes("/d/2.tar"), 0);
  files.map(5);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(server.body_bytes("/d/6.tar"), 0) << "not in order";
}

TEST_F(RemoteShards, EndWhileOneIsFetched) {
  server.always("/d/1.tar", {.stall_after = 100});
  const auto start = std::chrono::steady_clock::now();
  {
    io::FileCacheOptions patient = cache();
    patient.http.stall_timeout_ms = 60'000;
    const ShardFiles::CacheScope scope(patient);
    const ShardFiles files({server.url("/d/0.tar"), server.url("/d/1.tar")});
    files.map(0);
    for (int i = 0; i < 2000 && server.served().size() < 2; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
}

TEST_F(RemoteShards, ThatCannotBeFetchedAreBadSamples) {
  open_all(20'480);  // indexes are kept now
  const SourcePtr source = open_all(20'480);
  std::filesystem::remove_all(folder / "cache/files");
  std::filesystem::create_directory(folder / "cache/files");
  server.always("/d/3.tar", {.status = 503});
  server.always("/d/4.tar", {.status = 404});
  EXPECT_THAT(message_of([&] { source->read(9); }),
              AllOf(HasSubstr("read: sample \"3_0\" (id 9), cls at byte 512 of " + server.url("/d/3.tar")),
                    HasSubstr("status 503"), HasSubstr("2 attempts failed")));
  EXPECT_THAT(message_of([&] { source->read(12); }), HasSubstr("status 404"));
  set_log_sink(nullptr);
  Loader loader = Dataset(source).batch(5).on_bad_sample(OnBadSample::skip).loader();
  int64_t delivered = 0;
  for (const Batch& batch : loader.epoch(0)) delivered += batch.size();
  set_log_sink(make_default_log_sink());
  EXPECT_EQ(delivered, (shards - 2) * samples);
  EXPECT_EQ(loader.skipped(), 2 * samples);
  EXPECT_THAT(message_of([&] { open_webdataset({server.url("/none.tar?X-Amz-Signature=SECRET")}); }),
              AllOf(HasSubstr("status 404"), Not(HasSubstr("SECRET"))));
}

TEST_F(RemoteShards, AreNamedOnceWhereTheyDoNotFitTheirIndex) {
  open_all(20'480);  // indexes are kept now
  const SourcePtr source = open_all(20'480);
  std::filesystem::remove_all(folder / "cache/files");
  std::filesystem::create_directory(folder / "cache/files");
  write_shard(folder / "shard.tar", {{"x_0.cls", "9"}, {"x_1.cls", "10"}, {"x_2.cls", "11"}});
  server.put("/d/3.tar", read_text_file(folder / "shard.tar"));
  const std::string message = message_of([&] { source->read(9); }), name = server.url("/d/3.tar");
  EXPECT_THAT(message, AllOf(HasSubstr(name + ": the index " + folder / "cache/index/"),
                             HasSubstr(".tarindex does not match the archive: expected \"3_0.cls\"")));
  EXPECT_EQ(message.find(name), message.rfind(name)) << message;
}

TEST_F(RemoteShards, ThatChangeWhileTheyAreOpenAreBadSamples) {
  const SourcePtr source = open_all(20'480);
  write_shard(folder / "shard.tar", {{"3_0.cls", "x"}, {"3_1.cls", "y"}, {"3_2.cls", "z"}});
  server.put_file("/d/3.tar", {.content = read_text_file(folder / "shard.tar"), .etag = "\"v2\""});
  source->read(0);
  source->read(23);  // they take the place of shard 3
  EXPECT_THAT(message_of([&] { source->read(9); }), HasSubstr("has changed on the server since it was opened"));
  EXPECT_EQ(io::as_text(source->read(0).find("cls")->bytes), "0");
}

TEST_F(RemoteShards, MayBeCompressedAndRedirected) {
  const std::string packed = std::string(BELLOWS_SOURCE_DIR) + "/tests/goldens/interop/webdataset/packed.tar.zst";
  server.put("/real", read_text_file(packed));
  server.always("/packed", {.redirect = server.url("/real?signature=1")});
  const ShardFiles::CacheScope scope(cache());
  for (int i = 0; i < 2; ++i) {
    const SourcePtr source = open_webdataset({server.url("/packed")});
    EXPECT_EQ(source->size(), 7);
    EXPECT_EQ(source->read(6).key, "train/0006");
  }
}

TEST_F(RemoteShards, ServeManyThreads) {
  const SourcePtr source = open_all(6 * 10'240);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Sample sample;
      for (int64_t i = 0; i < 60; ++i) {
        const int64_t at = (i * 7 + t * 5) % source->size();
        source->read(at, sample);
        EXPECT_EQ(io::as_text(sample.find("cls")->bytes), std::to_string(at));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ExpandShards, KnowsUrls) {
  EXPECT_THAT(expand_shards("http://h/{00..02}.tar"),
              ElementsAre("http://h/00.tar", "http://h/01.tar", "http://h/02.tar"));
  EXPECT_THAT(expand_shards("http://h/a.tar?x=*&y=[1]"), ElementsAre("http://h/a.tar?x=*&y=[1]"));
  EXPECT_THAT(expand_shards("https://h/{a,b}.tar::http://[::1]:80/c.tar::d.tar"),
              ElementsAre("https://h/a.tar", "https://h/b.tar", "http://[::1]:80/c.tar", "d.tar"));
  EXPECT_THAT(expand_shards("d.tar::http://h/c.tar"), ElementsAre("d.tar", "http://h/c.tar"));
}

}  // namespace
}  // namespace bellows::data::testing
