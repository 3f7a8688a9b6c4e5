#include <ATen/core/Tensor.h>

#include "bellows/data/formats/array_source.h"
#include "bellows/data/formats/beton_source.h"
#include "bellows/data/formats/folder_source.h"
#include "bellows/data/formats/formats.h"
#include "bellows/data/formats/mds_source.h"
#include "bellows/data/formats/pack_source.h"
#include "bellows/data/formats/recordio_source.h"
#include "bellows/data/formats/table_source.h"
#include "bellows/data/formats/tfrecord_source.h"
#include "tests/data/support.h"
#include "tests/support/http_server.h"

namespace bellows::data::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// Two samples of bytes or numbers, as the format takes them.
void write_with(Sink& sink, const std::string& kind) {
  for (int64_t i = 0; i < 2; ++i) {
    const std::string key = c10::str("k", i), label = std::to_string(i), png = a_png();
    const int64_t number = i;
    Sample sample;
    sample.id = i;
    if (kind != "arrays" && kind != "beton" && kind != "recordio" && kind != "csv") sample.key = key;
    if (kind == "arrays" || kind == "csv") {
      Field& field = sample.fields.emplace_back();
      field.name = kind == "csv" ? "x" : "label";
      field.bytes = std::as_bytes(std::span(&number, 1));
      field.is_array = true;
      field.dtype = c10::ScalarType::Long;
      if (kind == "csv") sample.fields.emplace_back(field).name = "y";
    } else {
      Field& picture = sample.fields.emplace_back();
      picture.name = "png";
      picture.bytes = io::as_bytes(png);
      Field& field = sample.fields.emplace_back();
      field.name = "cls";
      field.bytes = io::as_bytes(label);
    }
    sink.write(sample);
  }
  sink.close();
}

/// Writes two samples in each format under a name that says nothing.
class OpenByContent : public ::testing::Test {
 protected:
  std::string write(const std::string& kind) {
    const std::string path = folder / (kind + ".data");
    if (kind == "tar") write_with(*webdataset_sink(path), kind);
    if (kind == "tfrecord") write_with(*tfrecord_sink(path), kind);
    if (kind == "recordio") write_with(*recordio_sink(path), kind);
    if (kind == "pack") write_with(*pack_sink(path), kind);
    if (kind == "beton") write_with(*beton_sink(path, {.images = BetonImages::raw}), kind);
    if (kind == "jsonl") write_text_file(path, "{\"x\": 1}\n{\"x\": 2}\n");
    if (kind == "csv") write_text_file(path, "x,y\n1,2\n3,4\n");
    if (kind == "tabs") write_text_file(path, "x\ty\n1\t2\n3\t4\n");
    if (kind == "semicolons") write_text_file(path, "x;y\n1;2\n3;4\n");
    for (const std::string suffix : {"npy", "npz", "safetensors"}) {
      if (kind != suffix) continue;
      write_with(*arrays_sink(folder / ("x." + suffix)), "arrays");
      std::filesystem::rename(folder / ("x." + suffix), path);
    }
    return path;
  }
  TemporaryFolder folder;
};

TEST_F(OpenByContent, WhateverItsName) {
  for (const char* kind : {"tar", "tfrecord", "recordio", "pack", "beton", "jsonl", "csv", "tabs", "semicolons", "npy",
                           "npz", "safetensors"}) {
    const std::string path = write(kind);
    const Dataset dataset = open(path);
    EXPECT_EQ(dataset.size(), 2) << kind;
    EXPECT_FALSE(dataset.source()->read(1).fields.empty()) << kind;
    std::vector<std::string> takers;
    for (const FileFormat& format : file_formats()) {
      const MappedFile file(path);
      if (format.fits({file.bytes(), file.bytes(), false})) takers.emplace_back(format.name);
    }
    EXPECT_THAT(takers, ::testing::SizeIs(1)) << kind;
  }
}

TEST_F(OpenByContent, CompressedOrNot) {
  const std::string packed = std::string(BELLOWS_SOURCE_DIR) + "/tests/goldens/interop/webdataset/packed.tar.";
  for (const char* suffix : {"gz", "bz2", "xz", "zst", "lz4"}) {
    const std::string path = folder / "x";
    std::filesystem::copy_file(packed + suffix, path, std::filesystem::copy_options::overwrite_existing);
    EXPECT_EQ(open(path, {.cache_folder = folder / "cache"}).size(), 7) << suffix;
  }
}

TEST_F(OpenByContent, FoldersOfEachKind) {
  write_with(*mds_sink(folder / "mds"), "mds");
  EXPECT_EQ(open(folder / "mds").size(), 2);
  EXPECT_EQ(open(folder / "mds/index.json").size(), 2);
  write_with(*image_folder_sink(folder / "images", {.classes = {"cat", "dog"}}), "images");
  const Dataset images = open(folder / "images");
  EXPECT_EQ(images.size(), 2);
  EXPECT_THAT(images.info().classes, ElementsAre("cat", "dog"));
  EXPECT_EQ(images.pipeline().num_classes, 2);
  for (const char* kind : {"tar", "tfrecord", "recordio", "pack", "beton", "jsonl", "csv", "npz", "safetensors"}) {
    const std::string one = folder / (std::string("folder_") + kind);
    std::filesystem::create_directory(one);
    std::filesystem::rename(write(kind), one + "/train-0.x");
    write_text_file(one + "/README.md", "about the data");
    EXPECT_EQ(open(one).size(), 2) << kind;
    EXPECT_EQ(open(one).info().split, "train") << kind;
  }
}

TEST_F(OpenByContent, ArraysOfAFolderBelongTogether) {
  std::filesystem::create_directory(folder / "set");
  std::filesystem::rename(write("npy"), folder / "set/x.npy");
  std::filesystem::rename(write("npy"), folder / "set/y.npy");
  const Dataset set = open(folder / "set");
  EXPECT_EQ(set.size(), 2);
  EXPECT_EQ(set.source()->read(0).fields.size(), 2U);
}

TEST_F(OpenByContent, SplitsAreFoldersOrNames) {
  for (const char* split : {"train", "val"}) {
    std::filesystem::create_directories(folder / "images");
    write_with(*image_folder_sink(folder / (std::string("images/") + split)), "images");
    std::filesystem::create_directories(folder / "mds");
    write_with(*mds_sink(folder / (std::string("mds/") + split)), "mds");
  }
  for (const char* name : {"images", "mds"}) {
    EXPECT_THAT(error_of([&] { open(folder / name); }), HasSubstr("has several splits: train, val. Choose one"));
    const Dataset train = open(folder / name, {.split = "train"});
    EXPECT_EQ(train.size(), 2);
    EXPECT_THAT(train.info().splits, ElementsAre("train", "val"));
    EXPECT_THAT(error_of([&] { open(folder / name, {.split = "vla"}); }), HasSubstr("Did you mean \"val\"?"));
  }
  std::filesystem::create_directory(folder / "named");
  for (const char* file : {"train-00000-of-00002", "train-00001-of-00002", "test.tfrecord-00000-of-00001"})
    std::filesystem::copy_file(write("tfrecord"), folder / (std::string("named/") + file));
  EXPECT_EQ(open(folder / "named", {.split = "train"}).size(), 4);
  EXPECT_EQ(open(folder / "named", {.split = "test"}).size(), 2);
}

TEST_F(OpenByContent, AmbiguousFoldersSaySo) {
  std::filesystem::create_directory(folder / "two");
  std::filesystem::rename(write("tar"), folder / "two/a.tar");
  std::filesystem::rename(write("beton"), folder / "two/b.beton");
  EXPECT_THAT(error_of([&] { open(folder / "two"); }), AllOf(HasSubstr("is ambiguous"), HasSubstr("tar (WebDataset"),
                                                             HasSubstr("FFCV .beton"), HasSubstr("Name the files")));
  write_text_file(folder / "two/labels.csv", "a,b\n1,2\n");
  std::filesystem::remove(folder / "two/b.beton");
  EXPECT_EQ(open(folder / "two").size(), 2) << "a table beside shards describes them";
  write_text_file(folder / "two/x.png", a_png());
  EXPECT_THAT(error_of([&] { open(folder / "two"); }), HasSubstr("JPEG or PNG images; 1 files of the format tar"));
}

TEST_F(OpenByContent, UnknownContentIsDescribed) {
  const auto message = [&](const std::string& content) {
    write_text_file(folder / "x", content);
    return error_of([&] { open(folder / "x"); });
  };
  for (const auto& [content, words] : std::vector<std::pair<std::string, std::string>>{
           {"", "an empty file"},
           {a_png(), "a PNG image"},
           {"<!DOCTYPE html><p>a,b", "an HTML page"},
           {"version https://git-lfs.github.com/spec/v1\noid", "a git-lfs pointer"},
           {std::string("\x89HDF\r\n\x1a\n", 8), "an HDF5 file"},
           {"{\n  \"a\": [1, 2]\n}", "JSON text"},
           {"just words", "unknown content that begins with \"just words\""},
           {std::string("PK\x03\x04", 4) + std::string(40, 'x'), "a zip archive"}}) {
    EXPECT_THAT(message(content), AllOf(HasSubstr("open: " + folder / "x" + ": expected a dataset, found " + words),
                                        HasSubstr("Supported formats: Bellows pack, "), HasSubstr("folders of")));
  }
  write_text_file(folder / "x", "x");
  EXPECT_THAT(error_of([&] { open("ftp://host/a.tar"); }), HasSubstr("only http:// and https://"));
}

TEST_F(OpenByContent, MdsShardsAreComparedWithTheirHashes) {
  for (const std::string compression : {"", "zstd"}) {
    const std::string set = folder / ("mds" + compression);
    write_with(*mds_sink(set, {.compression = compression, .hashes = {"xxh64"}}), "mds");
    EXPECT_NO_THROW(open(set).source()->read(0));
    for (const auto& entry : std::filesystem::directory_iterator(set)) {
      if (entry.path().extension() == ".json") continue;
      std::string bytes = read_text_file(entry.path());
      bytes.back() = static_cast<char>(bytes.back() ^ 1);
      write_text_file(entry.path(), bytes);
      break;
    }
    const Dataset damaged = open(set);
    EXPECT_THAT(error_of([&] { damaged.source()->read(0); }),
                AllOf(HasSubstr("read: sample"), HasSubstr("shard.00000.mds"), HasSubstr("expected the xxh64")));
  }
}

TEST_F(OpenByContent, DamagedStartsNeverCrash) {
  for (const char* kind :
       {"tar", "tfrecord", "recordio", "pack", "beton", "jsonl", "csv", "npy", "npz", "safetensors"}) {
    const std::string good = read_text_file(write(kind));
    for (size_t bit = 0; bit < std::min<size_t>(good.size(), 64) * 8; bit += 3) {
      std::string damaged = good;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
      recognise(io::as_bytes(damaged), "x");
    }
    for (size_t length = 0; length < std::min<size_t>(good.size(), 600); ++length)
      recognise(io::as_bytes(good).first(length), "x");
  }
}

TEST_F(OpenByContent, RemoteTablesAreFetchedOnce) {
  bellows::testing::HttpServer server;
  for (const int64_t rows : {3, 40'000, 50'000}) {
    std::string text = "x,y\n";
    for (int64_t i = 0; i < rows; ++i) text += "123,456\n";
    const std::string path = c10::str("/", rows, ".csv");
    server.put_file(path, {.content = text, .etag = rows == 50'000 ? "" : "\"v1\""});
    const size_t before = server.served().size();
    EXPECT_EQ(open(server.url(path), {.cache_folder = folder / "cache"}).size(), rows);
    EXPECT_LE(server.served().size() - before, 3U) << "what it is, how it begins, all of it";
    const auto size = static_cast<int64_t>(text.size()), first_look = int64_t{64} << 10;
    EXPECT_LE(server.body_bytes(path), size + (size > first_look ? first_look : 0) + 1) << rows;
  }
}

TEST_F(OpenByContent, UrlsOfEachKind) {
  bellows::testing::HttpServer server;
  for (const char* kind :
       {"tar", "tfrecord", "recordio", "pack", "beton", "jsonl", "csv", "npy", "npz", "safetensors"}) {
    server.put(std::string("/") + kind, read_text_file(write(kind)));
    const Dataset dataset =
        open(server.url(std::string("/") + kind + "?X-Amz-Signature=s"), {.cache_folder = folder / "cache"});
    EXPECT_EQ(dataset.size(), 2) << kind;
    EXPECT_FALSE(dataset.source()->read(1).fields.empty()) << kind;
  }
  write_with(*mds_sink(folder / "mds", {.compression = "zstd"}), "mds");
  for (const auto& entry : std::filesystem::directory_iterator(folder / "mds"))
    server.put("/mds/" + entry.path().filename().string(), read_text_file(entry.path()));
  EXPECT_EQ(open(server.url("/mds/"), {.cache_folder = folder / "cache"}).size(), 2);
  EXPECT_EQ(open(server.url("/mds/index.json"), {.cache_folder = folder / "cache"}).source()->read(1).key, "k1");
  for (int i = 0; i < 3; ++i) server.put(c10::str("/s/", i, ".tar"), read_text_file(write("tar")));
  EXPECT_EQ(open(server.url("/s/{0..2}.tar"), {.cache_folder = folder / "cache"}).size(), 6);
  EXPECT_THAT(error_of([&] { open(server.url("/none"), {.cache_folder = folder / "cache"}); }),
              HasSubstr("status 404"));
}

TEST_F(OpenByContent, FoldersOfPicturesHaveNoUrl) {
  bellows::testing::HttpServer server;
  server.put("/pets", "<!DOCTYPE html><a href=\"cat/0.png\">0.png</a>");
  server.put("/cat.png", a_png());
  const auto message = [&](const std::string& path) {
    return error_of([&] { open(server.url(path), {.cache_folder = folder / "cache"}); });
  };
  for (const char* path : {"/pets", "/cat.png"})
    EXPECT_THAT(message(path), AllOf(HasSubstr("Otherwise name its files: URL/train-{000..099}.tar"),
                                     HasSubstr("create such files from images, use `bellows pack`"),
                                     Not(HasSubstr("and folders of"))));
  EXPECT_THAT(message("/pets/"),
              AllOf(HasSubstr("status 404"), HasSubstr("name the files (" + server.url("/pets/train-")),
                    HasSubstr("create such files from folders of images, use `bellows pack`")));
}

}  // namespace
}  // namespace bellows::data::testing
