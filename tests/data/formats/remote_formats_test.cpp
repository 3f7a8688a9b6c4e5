#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>
#include <random>
#include <sstream>
#include <thread>

#include "bellows/data/formats/formats.h"
#include "bellows/data/formats/mds_source.h"
#include "bellows/data/formats/table_source.h"
#include "tests/data/cache_support.h"
#include "tests/data/support.h"
#include "tests/support/errors.h"
#include "tests/support/http_server.h"

namespace bellows::data::testing {
namespace {

using bellows::testing::HttpServer;
using ::testing::HasSubstr;

constexpr int64_t kFiles = 5, kRows = 4;
constexpr io::HttpOptions kPatient{
    .attempts = 6, .connect_timeout_ms = 2000, .stall_timeout_ms = 10'000, .backoff_ms = 1};

/// 40,000 characters that differ from sample to sample.
std::string payload(int64_t number) {
  std::string text;
  for (int64_t i = 0; text.size() < 40'000; ++i) text += std::to_string(number * 7919 + i) + " ";
  return text;
}

void fill_array(const std::string& path, const std::string& name) {
  const auto sink = arrays_sink(path);
  for (int64_t i = 0; i < kFiles * kRows; ++i) {
    std::vector<int64_t> row(2000);
    std::iota(row.begin(), row.end(), i * 1'000'000 + name.back());
    const std::vector<int64_t> sizes{2000};
    Sample sample;
    sample.id = i;
    sample.fields.push_back({.name = name,
                             .bytes = std::as_bytes(std::span(row)),
                             .is_array = true,
                             .dtype = c10::ScalarType::Long,
                             .sizes = sizes});
    sink->write(sample);
  }
  sink->close();
}

void fill_sink(Sink& sink, const std::string& kind, int64_t first, int64_t count) {
  for (int64_t i = first; i < first + count; ++i) {
    const std::string key = c10::str("k", i), label = std::to_string(i);
    const std::string picture = a_png() + (kind == "beton" ? "" : payload(i));
    Sample sample;
    sample.id = i;
    if (kind != "beton" && kind != "recordio") sample.key = key;
    sample.fields.push_back({.name = "png", .bytes = io::as_bytes(picture)});
    sample.fields.push_back({.name = "cls", .bytes = io::as_bytes(label)});
    sink.write(sample);
  }
  sink.close();
}

std::string table(const std::string& kind, int64_t first) {
  std::string text = kind == "csv" ? "x,y\n" : "";
  for (int64_t i = first; i < first + kRows; ++i) {
    text += kind == "csv" ? c10::str(i, ",\"", payload(i), "\"\n")
                          : c10::str("{\"x\": ", i, ", \"y\": \"", payload(i), "\"}\n");
  }
  return text;
}

/// What there is to see of a sample.
std::string seen(const Sample& sample) {
  std::string text = c10::str(sample.id, " ", sample.key);
  for (const Field& field : sample.fields)
    text +=
        c10::str("\n", field.name, " ", field.offset, " ", field.sizes, ":") + std::string(io::as_text(field.bytes));
  return text;
}

/// Five files of one format, here and on a server.
class RemoteFormat : public ::testing::TestWithParam<const char*> {
 protected:
  RemoteFormat() {
    std::filesystem::create_directory(folder / "set");
    if (kind() == "mds") {
      fill_sink(*mds_sink(folder / "set", {.size_limit = 4 * 42'000}), kind(), 0, kFiles * kRows);
    } else {
      for (int64_t f = 0; f < kFiles; ++f) write_file(folder / c10::str("set/", f, ".", kind()), f);
    }
    for (const auto& entry : std::filesystem::directory_iterator(folder / "set")) {
      const std::string name = entry.path().filename();
      if (name.ends_with("idx") || name.ends_with("tfindex")) continue;
      server.put("/" + name, read_text_file(entry.path()));
      largest = std::max(largest, static_cast<int64_t>(entry.file_size()));
      if (name != "index.json") names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    local = open_at(folder / "set");
  }

  static std::string kind() { return GetParam(); }
  static bool has_columns() { return kind() == "npy" || kind() == "npz" || kind() == "safetensors"; }

  static void write_file(const std::string& path, int64_t f) {
    const int64_t first = f * kRows;
    if (kind() == "tar") fill_sink(*webdataset_sink(path), kind(), first, kRows);
    if (kind() == "tfrecord") fill_sink(*tfrecord_sink(path), kind(), first, kRows);
    if (kind() == "recordio") fill_sink(*recordio_sink(path), kind(), first, kRows);
    if (kind() == "pack") fill_sink(*pack_sink(path), kind(), first, kRows);
    if (kind() == "beton") fill_sink(*beton_sink(path, {.page_size = 2 << 20}), kind(), first, kRows);
    if (kind() == "jsonl" || kind() == "csv") write_text_file(path, table(kind(), first));
    if (has_columns()) fill_array(path, c10::str("c", f));
  }

  SourcePtr open_at(const std::string& place) const {
    if (kind() == "mds") return open_mds(place);
    std::vector<std::string> files;
    files.reserve(names.size());
    for (const std::string& name : names) files.push_back(place + "/" + name);
    return open_files(files);
  }
  /// Half of the files have room.
  int64_t limit() const { return 3 * largest; }
  SourcePtr open_remote() const {
    const ShardFiles::CacheScope scope({folder / "cache", limit(), kPatient});
    return open_at(server.url());
  }
  int64_t cached_bytes() const { return io::testing::cached_bytes(folder / "cache/files"); }
  void expect_equal(const Source& source, const std::vector<int64_t>& order) const {
    Sample sample, expected;
    for (const int64_t i : order) {
      source.read(i, sample);
      local->read(i, expected);
      EXPECT_TRUE(seen(sample) == seen(expected)) << kind() << ", sample " << i;
    }
  }
  std::vector<int64_t> order(unsigned seed) const {
    std::vector<int64_t> all(static_cast<size_t>(local->size()));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), std::mt19937(seed));
    return all;
  }

  TemporaryFolder folder;
  HttpServer server;
  std::vector<std::string> names;
  int64_t largest = 0;
  SourcePtr local;
};

/// Those that can tell damaged bytes from others: by checksums, or by their structure.
class RemoteFormatWithChecks : public RemoteFormat {};

/// Those that say where everything is in a small part of the file.
class RemoteFormatWithIndex : public RemoteFormat {};

TEST_P(RemoteFormat, IsReadInAnyOrderByTwoThreadsUnderTheLimit) {
  std::atomic<bool> done = false;
  int64_t most = 0;
  std::thread watcher([&] {
    while (!done) {
      most = std::max(most, cached_bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const SourcePtr source = open_remote();
  ASSERT_EQ(source->size(), kFiles * kRows);
  EXPECT_EQ(source->block_starts(), local->block_starts());
  EXPECT_TRUE(source->prefetch(3));
  std::thread other([&] { expect_equal(*source, order(1)); });
  expect_equal(*source, order(2));
  other.join();
  done = true;
  watcher.join();
  EXPECT_LE(most, limit());
  EXPECT_GT(most, 0);
}

TEST_P(RemoteFormat, OutlivesFailuresOfTheServer) {
  for (const std::string& name : names) server.fault("/" + name, {.status = 503});
  const SourcePtr source = open_remote();
  for (const std::string& name : names) {
    server.fault("/" + name, {.drop_after = 1000});
    server.fault("/" + name, {.status = 503});
    server.fault("/" + name, {.drop_after = 50'000});
  }
  expect_equal(*source, order(3));
}

TEST_P(RemoteFormat, SaysThatAFileChanged) {
  const SourcePtr source = open_remote();
  expect_equal(*source, order(5));  // MDS knows its shards' versions from their first use on
  for (const std::string& name : names) {
    std::string content = read_text_file(folder / ("set/" + name));
    content.back() = static_cast<char>(content.back() ^ 1);
    server.put_file("/" + name, {.content = content, .etag = "\"v2\""});
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder / "cache/files"))
    std::filesystem::remove(entry.path());
  Sample sample;
  std::string message;
  try {  // the last file may be mapped still
    for (int64_t i = 0; i < source->size(); ++i) source->read(i, sample);
  } catch (const c10::ValueError& error) {
    message = user_message(error);
  }
  EXPECT_THAT(message, HasSubstr("has changed on the server since it was opened"));
  EXPECT_THAT(message, HasSubstr("Open the dataset again"));
}

/// Reads all samples; returns the error's text where one cannot be read.
std::string read_all(const std::function<SourcePtr()>& open) {
  return message_of([&] {
    const SourcePtr source = open();
    for (int64_t i = 0; i < source->size(); ++i) source->read(i);
  });
}

TEST_P(RemoteFormatWithChecks, IsFetchedAnewWhereItCameDamaged) {
  const std::string& name = names[1];
  const std::string good = read_text_file(folder / ("set/" + name));
  std::string bad = good;  // of the same size, under the same ETag
  const bool by_structure = kind() == "csv" || kind() == "jsonl" || kind() == "mds";
  for (size_t at = by_structure ? 0 : good.size() / 3; at < good.size() * 2 / 3; at += 16)
    bad[at] = static_cast<char>(bad[at] ^ 0x55);
  server.put("/" + name, bad);
  const auto open_all = [&] {
    const ShardFiles::CacheScope scope({folder / "cache", 1 << 26, kPatient});
    return open_at(server.url());
  };
  for (int i = 0; i < 2; ++i) {
    const std::string message = read_all(open_all);
    EXPECT_THAT(message, HasSubstr("the cached copy " + folder / "cache/files/"));
    EXPECT_THAT(message, HasSubstr(server.url("/" + name)));
  }
  server.put("/" + name, good);
  EXPECT_EQ(read_all(open_all), "no error");
}

TEST_P(RemoteFormat, DoesNotFetchAnewForAnErrorOfTheCaller) {
  const auto open_all = [&] {
    const ShardFiles::CacheScope scope({folder / "cache", 1 << 26, kPatient});
    return open_at(server.url());
  };
  ASSERT_EQ(read_all(open_all), "no error");
  {
    const ShardFiles::CacheScope scope({folder / "cache", 1 << 26, kPatient});
    const std::string url = server.url("/" + names[0]);
    if (kind() == "csv") {
      EXPECT_THROW(open_csv({url}, {.image_column = "none"}), c10::Error);
      EXPECT_THROW(open_csv({url}, {.image_column = "x"})->read(0), c10::Error);
    }
    if (kind() == "jsonl") {
      EXPECT_THROW(open_jsonl({url}, {.image_column = "none"}), c10::Error);
    }
  }
  int64_t sent = 0, now = 0;
  for (const auto& one : server.served()) sent += one.body_bytes;
  EXPECT_EQ(read_all(open_all), "no error");
  for (const auto& one : server.served()) now += one.body_bytes;
  EXPECT_LE(now - sent, 2 * (kFiles + 1)) << "looked at";
}

TEST_P(RemoteFormatWithIndex, OpensByItAlone) {
  const SourcePtr source = open_remote();
  int64_t sent = 0;
  for (const auto& one : server.served()) sent += one.body_bytes;
  EXPECT_LE(sent, (kFiles + 1) * 68'000);
  EXPECT_EQ(cached_bytes(), 0);
}

TEST_P(RemoteFormat, NeedsNoRanges) {
  for (const std::string& name : names)
    server.put_file("/" + name, {.content = read_text_file(folder / ("set/" + name)), .ranges = false});
  expect_equal(*open_remote(), order(4));
}

INSTANTIATE_TEST_SUITE_P(All, RemoteFormat,
                         ::testing::Values("tar", "tfrecord", "recordio", "pack", "beton", "mds", "jsonl", "csv", "npy",
                                           "npz", "safetensors"),
                         [](const auto& test) { return std::string(test.param); });

INSTANTIATE_TEST_SUITE_P(All, RemoteFormatWithChecks,
                         ::testing::Values("tar", "tfrecord", "recordio", "pack", "mds", "jsonl", "csv", "npz"),
                         [](const auto& test) { return std::string(test.param); });

INSTANTIATE_TEST_SUITE_P(All, RemoteFormatWithIndex, ::testing::Values("pack", "beton", "npy", "safetensors"),
                         [](const auto& test) { return std::string(test.param); });

/// Shards of images on a server. Their formats say nothing about the bytes inside an image.
class RemoteImages : public ::testing::TestWithParam<const char*> {
 protected:
  RemoteImages() {
    const std::string kind = GetParam(), path = folder / ("set." + kind);
    const auto sink = kind == "tar" ? webdataset_sink(path) : recordio_sink(path);
    fill_sink(*sink, "beton", 0, kRows);  // images without a payload behind them
    good = read_text_file(path);
  }
  /// Decodes all images as a new run does; returns the error's text.
  std::string decode_all() const {
    return message_of([&] {
      Loader loader = open(url, {.cache_folder = folder / "cache"}).decode("gray").num_classes(10).batch(2).loader();
      for (const Batch& batch : loader.epoch(0)) batch.size();
    });
  }
  void serve(const std::string& content) { server.put("/set." + std::string(GetParam()), content); }

  TemporaryFolder folder;
  HttpServer server;
  const std::string url = server.url("/set." + std::string(GetParam()));
  std::string good;
};

TEST_P(RemoteImages, DamagedInsideAreFetchedAnewAndNameTheirCopy) {
  std::string bad = good;
  const size_t image = bad.find(a_png());
  ASSERT_NE(image, std::string::npos);
  for (size_t at = image + 60; at < image + 64; ++at) bad[at] = static_cast<char>(bad[at] ^ 0x55);
  serve(bad);
  for (int i = 0; i < 2; ++i) {
    const std::string message = decode_all();
    EXPECT_THAT(message, HasSubstr("decode: sample"));
    EXPECT_THAT(message, HasSubstr("the cached copy " + folder / "cache/files/"));
    EXPECT_THAT(message, HasSubstr("the file is downloaded again"));
  }
  serve(good);
  EXPECT_EQ(decode_all(), "no error");
}

TEST_P(RemoteImages, DamagedAtTheServerAreNotFetchedByEveryRun) {
  std::string bad = good;
  bad[bad.find(a_png()) + 60] ^= 0x55;
  serve(bad);
  for (int i = 0; i < 3; ++i) EXPECT_THAT(decode_all(), HasSubstr("decode: sample"));
  const size_t requests = server.served().size();
  for (int i = 0; i < 2; ++i) EXPECT_THAT(decode_all(), HasSubstr("The server sends the same bytes each time."));
  int64_t sent = 0;
  for (size_t i = requests; i < server.served().size(); ++i) sent += server.served()[i].body_bytes;
  EXPECT_LT(sent, static_cast<int64_t>(good.size())) << "looked at only";
}

INSTANTIATE_TEST_SUITE_P(All, RemoteImages, ::testing::Values("tar", "recordio"),
                         [](const auto& test) { return std::string(test.param); });

TEST(RemoteRecordio, ComesInTheOrderOfItsIndex) {
  TemporaryFolder folder;
  HttpServer server;
  fill_sink(*recordio_sink(folder / "a.rec"), "recordio", 0, 3);
  server.put("/a.rec", read_text_file(folder / "a.rec"));
  const std::string url = server.url("/a.rec?X-Amz-Signature=s");
  const auto open_remote = [&] {
    const ShardFiles::CacheScope scope({folder / "cache", 1 << 20, kPatient});
    return open_files({url});
  };
  EXPECT_EQ(open_remote()->read(0).find("label")->offset, 0U) << "without an index";
  std::istringstream lines(read_text_file(folder / "a.idx"));
  std::string reversed;
  for (std::string line; std::getline(lines, line);) reversed.insert(0, line + "\n");
  write_text_file(folder / "a.idx", reversed);
  server.put("/a.idx", reversed);
  const SourcePtr local = open_files({folder / "a.rec"}), remote = open_remote();
  EXPECT_GT(remote->read(0).find("label")->offset, 0U);
  for (int64_t i = 0; i < 3; ++i) EXPECT_TRUE(seen(local->read(i)) == seen(remote->read(i))) << i;
  server.put("/a.idx", "0\t0\n");
  std::filesystem::remove_all(folder / "cache");
  EXPECT_THAT(message_of([&] { open_remote(); }), HasSubstr("a.idx: the index does not list the record"));
  server.always("/a.idx", {.status = 503});
  std::filesystem::remove_all(folder / "cache");
  EXPECT_THAT(message_of([&] { open_remote(); }), HasSubstr("status 503"));
}

TEST(RemoteTable, MayNamePicturesThatAreHere) {
  TemporaryFolder folder;
  HttpServer server;
  for (int f = 0; f < 4; ++f) server.put(c10::str("/", f, ".csv"), c10::str("image,text\na.png,", payload(f), "\n"));
  write_text_file(folder / "a.png", a_png());
  const ShardFiles::CacheScope scope({folder / "cache", 90'000, kPatient});
  const SourcePtr source =
      open_csv({server.url("/0.csv"), server.url("/1.csv"), server.url("/2.csv"), server.url("/3.csv")},
               {.image_column = "image", .image_folder = folder / ""});
  const Sample held = source->read(1);
  for (const int64_t i : {0, 2, 3}) source->read(i);
  EXPECT_EQ(io::as_text(held.find("text")->bytes), payload(1));
  EXPECT_EQ(io::as_text(held.find("image")->bytes), a_png());
}

}  // namespace
}  // namespace bellows::data::testing
