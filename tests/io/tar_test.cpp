#include "bellows/io/archives/tar.h"

#include <iomanip>

#include "bellows/io/archives/decompress.h"
#include "tests/io/support.h"

namespace bellows::io {

using TarTest = FolderTest;

namespace {

std::vector<std::string> member_names(const TarReader& reader) {
  std::vector<std::string> names;
  for (const TarEntry& entry : reader.index()) names.push_back(entry.name);
  return names;
}

const std::string kLongName = "folder/" + [] {
  std::string name;
  for (int i = 0; i < 40; ++i) name += "long";
  return name + "/" + std::string(120, 'n') + ".txt";
}();

/// A tar header whose checksum fits.
std::string tar_header(char type, size_t size) {
  std::string header(512, '\0');
  header.replace(124, 11, c10::str(std::oct, std::setfill('0'), std::setw(11), size));
  header[156] = type;
  header.replace(148, 8, 8, ' ');
  size_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  return header.replace(148, 7, c10::str(std::oct, std::setfill('0'), std::setw(6), sum) + std::string(1, '\0'));
}

/// An archive of one empty file whose name is so long, as GNU tar writes it.
std::string long_named(size_t bytes) {
  const size_t padding = (512 - bytes % 512) % 512;
  return tar_header('L', bytes) + std::string(bytes, 'n') + std::string(padding, '\0') + tar_header('0', 0) +
         std::string(1024, '\0');
}

}  // namespace

TEST_F(TarTest, ReadsAShardOfWebDataset) {
  TarReader reader(golden("shard.tar"));
  const std::vector<TarEntry> index = reader.index();
  ASSERT_EQ(index.size(), 9U);
  EXPECT_EQ(index[0].name, "train/0000.bin");
  EXPECT_EQ(index[4].name, "train/0001.cls");
  EXPECT_EQ(as_text(index[4].data), "1");
  EXPECT_EQ(as_text(index[8].data), "{\"i\": 2}");
  EXPECT_EQ(as_text(index[6].data), std::string(1400, '\2'));
  const MappedFile file(golden("shard.tar"));
  for (const TarEntry& entry : index) {
    EXPECT_EQ(as_text(file.bytes().subspan(entry.offset, entry.data.size())), as_text(entry.data));
    const auto next = reader.next();
    ASSERT_TRUE(next);
    EXPECT_EQ(next->name, entry.name);
  }
  EXPECT_FALSE(reader.next());
  reader.rewind();
  EXPECT_EQ(reader.next()->name, "train/0000.bin");
}

TEST_F(TarTest, EntriesOutliveACopyOfTheReader) {
  std::vector<TarEntry> index;
  std::optional<TarReader> copy;
  {
    const TarReader reader(golden("shard.tar"));
    index = reader.index();
    copy = reader;
  }
  EXPECT_EQ(as_text(index[1].data), "0");
}

TEST_F(TarTest, ReadsGnuAndPaxNamesAndPassesOverOtherMembers) {
  for (const char* name : {"gnu.tar", "pax.tar"}) {
    const TarReader reader(golden(name));
    EXPECT_EQ(member_names(reader), (std::vector<std::string>{kLongName, "plain.ä.txt"})) << name;
    for (const TarEntry& entry : reader.index()) EXPECT_EQ(as_text(entry.data), entry.name) << name;
  }
}

TEST_F(TarTest, UnpacksCompressedShards) {
  const TarReader reader(golden("shard.tar.gz"));
  EXPECT_EQ(member_names(reader), std::vector<std::string>{"a.txt"});
  EXPECT_EQ(as_text(reader.index()[0].data), "packed");
}

TEST_F(TarTest, NoticesACutOfTheFileUnlessItWasUnpacked) {
  for (const char* name : {"shard.tar", "shard.tar.gz"}) {
    const std::string file = path(name);
    std::filesystem::copy_file(golden(name), file, std::filesystem::copy_options::overwrite_existing);
    const TarReader reader(file);
    reader.check_size();
    std::filesystem::resize_file(file, 100);
    if (reader.path().ends_with(".gz")) {
      reader.check_size();
      EXPECT_EQ(as_text(reader.index()[0].data), "packed");
    } else {
      EXPECT_TRUE(has(value_error([&] { reader.check_size(); }), file + " was truncated"));
    }
  }
}

TEST_F(TarTest, WritesTheBytesOfWebDataset) {
  TarWriter writer(path("shard.tar"));
  const TarReader source(golden("shard.tar"));
  for (const TarEntry& entry : source.index()) writer.add(entry.name, entry.data);
  writer.close();
  EXPECT_TRUE(read_text_file(path("shard.tar")) == read_text_file(golden("shard.tar"))) << "20,480 bytes, not shown";
}

TEST_F(TarTest, WritesNamesOfAllLengths) {
  std::vector<std::string> names{"a", "folder/b.txt", "ä.txt", kLongName};
  for (const size_t length : {99, 100, 101, 155, 156, 255, 256, 257, 600}) {
    names.push_back(std::string(length, 'f'));
    names.push_back(std::string(length / 2, 'd') + "/" + std::string(length - length / 2, 'f'));
  }
  TarWriter writer(path("names.tar"));
  for (const std::string& name : names) writer.add(name, name);
  writer.close();
  const TarReader reader(path("names.tar"));
  EXPECT_EQ(member_names(reader), names);
  for (const TarEntry& entry : reader.index()) EXPECT_EQ(as_text(entry.data), entry.name);
  EXPECT_EQ(std::filesystem::file_size(path("names.tar")) % 10240, 0U);
}

TEST_F(TarTest, WriterRefusesBadNamesAndLeavesNothingWithoutClose) {
  {
    TarWriter writer(path("half.tar"));
    writer.add("a", "text");
    EXPECT_TRUE(has(value_error([&] { writer.add("", "x"); }), "expected a file name"));
    EXPECT_TRUE(has(value_error([&] { writer.add(std::string("a\0b", 3), "x"); }), "expected a file name"));
  }
  EXPECT_FALSE(std::filesystem::exists(path("half.tar")));
}

TEST_F(TarTest, SaysWhatIsWrongAndWhere) {
  EXPECT_TRUE(has(value_error([] { TarReader reader("/no/such.tar"); }), "No such file"));
  EXPECT_TRUE(has(value_error([] { TarReader reader(golden("images/rgb.png")); }), "truncated at byte 141"));
  EXPECT_TRUE(has(value_error([] { TarReader reader(golden("tricky.pt")); }), "found a zip archive"));
  std::string text = read_text_file(golden("shard.tar"));
  text[512 + 3] ^= 1;  // the second header's name
  TarReader broken(as_bytes(text), "x.tar");
  broken.next();
  EXPECT_TRUE(has(value_error([&] { broken.next(); }), "x.tar: expected a tar header at byte 512, found \"tra"));
  const std::string good = read_text_file(golden("shard.tar"));
  const std::string cut = value_error([&] { TarReader(as_bytes(good).first(4096), "x.tar").index(); });
  EXPECT_TRUE(has(cut, "x.tar: truncated")) << cut;
  EXPECT_TRUE(has(value_error([&] { TarReader(as_bytes(long_named(65537)), "x.tar").next(); }),
                  "x.tar: expected a name of at most 65536 bytes at byte 512, found one of 65537"));
  EXPECT_EQ(TarReader(as_bytes(long_named(65536)), "x.tar").next()->name, std::string(65536, 'n'));
  const std::string gzip = read_text_file(golden("shard.tar.gz"));
  EXPECT_TRUE(has(value_error([&] { decompress(as_bytes(gzip).first(60), "x.gz"); }), "truncated or corrupt"));
  EXPECT_TRUE(has(value_error([&] { decompress(as_bytes(gzip), "x.gz", 4096); }), "limit of 4096 bytes"));
}

}  // namespace bellows::io
