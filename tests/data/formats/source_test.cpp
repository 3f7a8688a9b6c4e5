#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <nlohmann/json.hpp>

#include "bellows/data/formats/shard_pattern.h"
#include "bellows/data/formats/webdataset.h"
#include "bellows/system/file.h"
#include "tests/data/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Name {
  std::string member, key, suffix;
};

TEST(WebDataset, SplitsNamesAtTheFirstDotOfTheBaseName) {
  for (const Name& n : {Name{"a.png", "a", "png"},
                        {"d/a.b.seg.PNG", "d/a", "b.seg.PNG"},
                        {"x.y/a.png", "x.y/a", "png"},
                        {"d/__a__.png", "d/__a__", "png"},
                        {"./a.cls", "./a", "cls"},
                        {"a.", "a", ""},
                        {"d/__meta__/a.txt", "d/__meta__/a", "txt"}}) {
    std::string_view key, suffix;
    EXPECT_TRUE(split_member_name(n.member, key, suffix)) << n.member;
    EXPECT_EQ(key, n.key);
    EXPECT_EQ(suffix, n.suffix);
  }
  std::string_view key, suffix;
  for (const char* name : {"a", "d/a", ".hidden", "d/._a.png", "__meta__/a.txt", "__meta__"}) {
    EXPECT_FALSE(split_member_name(name, key, suffix)) << name;
  }
}

TEST(WebDataset, KeepsManySuffixesApart) {
  const TemporaryFolder folder;
  io::TarWriter shard(folder / "many.tar");
  for (int i = 0; i < 3'000; ++i) shard.add(c10::str("k", i / 10, ".s", i), std::to_string(i));
  shard.close();
  const SourcePtr source = open_webdataset({folder / "many.tar"});
  ASSERT_EQ(source->size(), 300);
  for (int64_t i = 0; i < 300; ++i) {
    const Sample sample = source->read(i);
    ASSERT_EQ(sample.fields.size(), 10u);
    for (const Field& field : sample.fields) {
      const std::string text(reinterpret_cast<const char*>(field.bytes.data()), field.bytes.size());
      EXPECT_EQ(field.name, "s" + text);
    }
  }
}

TEST(WebDataset, ReadsWhatThePythonPackageWroteAsItReadsIt) {
  const auto expected = nlohmann::json::parse(read_text_file(kGoldens + "interop.json"));
  const SourcePtr source = open_webdataset({kGoldens + "interop-000.tar"});
  ASSERT_EQ(source->size(), static_cast<int64_t>(expected.size()));
  for (int64_t i = 0; i < source->size(); ++i) {
    const Sample sample = source->read(i);
    const auto& golden = expected[static_cast<size_t>(i)];
    EXPECT_EQ(sample.key, golden["__key__"]);
    EXPECT_EQ(sample.fields.size() + 1, golden.size());
    for (const Field& field : sample.fields) {
      std::string hex;
      for (std::byte byte : field.bytes)
        hex +=
            c10::str("0123456789abcdef"[static_cast<int>(byte) >> 4], "0123456789abcdef"[static_cast<int>(byte) & 15]);
      EXPECT_EQ(hex, golden.at(std::string(field.name))) << sample.where(&field);
    }
  }
}

TEST(WebDataset, SaysWhereAFieldLies) {
  const std::string path = kDigits + "/train-000.tar";
  const SourcePtr source = open_webdataset({path});
  const Sample sample = source->read(3);
  const std::string file = read_text_file(path);
  for (const Field& field : sample.fields) {
    EXPECT_EQ(file.substr(field.offset, field.bytes.size()),
              std::string(reinterpret_cast<const char*>(field.bytes.data()), field.bytes.size()));
    EXPECT_THAT(sample.where(&field), HasSubstr(c10::str(field.name, " at byte ", field.offset, " of ", path)));
  }
}

TEST(WebDataset, EndsASampleWithTheShardAndKeepsIdsAcrossShards) {
  TemporaryFolder folder;
  write_shard(folder / "0.tar", {{"a.cls", "0"}, {"b.cls", "1"}});
  write_shard(folder / "1.tar", {{"b.txt", "x"}, {"readme", "no suffix"}, {"b.CLS", "2"}, {"a.cls", "3"}});
  const SourcePtr source = open_webdataset({folder / "0.tar", folder / "1.tar"});
  std::vector<std::string> keys;
  keys.reserve(static_cast<size_t>(source->size()));
  for (int64_t i = 0; i < source->size(); ++i)
    keys.push_back(c10::str(source->read(i).key, source->read(i).fields.size(), ":", source->read(i).id));
  EXPECT_THAT(keys, ElementsAre("a1:0", "b1:1", "b2:2", "a1:3"));
}

TEST(WebDataset, RefusesASuffixTwice) {
  TemporaryFolder folder;
  write_shard(folder / "x.tar", {{"a.cls", "0"}, {"a.CLS", "1"}});
  const std::string message = error_of([&] { open_webdataset({folder / "x.tar"}); });
  EXPECT_THAT(message,
              HasSubstr("sample \"a\" has two members \".cls\", at bytes 512 and 1536 of " + folder / "x.tar"));
}

TEST(WebDataset, NamesAMissingShard) {
  const std::string message = error_of([] { open_webdataset(expand_shards(kDigits + "/train-{002..004}.tar")); });
  EXPECT_THAT(message, HasSubstr("train-004.tar"));
  EXPECT_THAT(message, HasSubstr("No such file"));
}

TEST(WebDataset, NamesACorruptShardAndTheOffset) {
  TemporaryFolder folder;
  std::string bytes = read_text_file(kDigits + "/test-000.tar");
  bytes[2048 + 5] ^= 0x40;  // in the third member's header: its checksum fails
  write_text_file(folder / "flipped.tar", bytes);
  std::string message = error_of([&] { open_webdataset({folder / "flipped.tar"}); });
  EXPECT_THAT(message, HasSubstr(folder / "flipped.tar"));
  EXPECT_THAT(message, HasSubstr("2048"));
  write_text_file(folder / "cut.tar", bytes.substr(0, 1024 + 512 + 7));
  EXPECT_THAT(error_of([&] { open_webdataset({folder / "cut.tar"}); }), HasSubstr(folder / "cut.tar"));
  write_text_file(folder / "html.tar", "<html>404</html>");
  EXPECT_THAT(error_of([&] { open_webdataset({folder / "html.tar"}); }), HasSubstr(folder / "html.tar"));
}

TEST(ExpandShards, KnowsRangesListsAndJoins) {
  EXPECT_THAT(expand_shards("a-{008..011}.tar"), ElementsAre("a-008.tar", "a-009.tar", "a-010.tar", "a-011.tar"));
  EXPECT_THAT(expand_shards("{x,y}-{0..1}"), ElementsAre("x-0", "x-1", "y-0", "y-1"));
  EXPECT_THAT(expand_shards("a.tar::b-{1..2}.tar"), ElementsAre("a.tar", "b-1.tar", "b-2.tar"));
  EXPECT_THAT(expand_shards("{9..11}"), ElementsAre("9", "10", "11"));
  EXPECT_THAT(expand_shards(kDigits + "/te*.tar"), ElementsAre(kDigits + "/test-000.tar"));
}

TEST(ExpandShards, ExplainsWhatIsWrong) {
  EXPECT_THAT(error_of([] { expand_shards("a-{5..2}.tar"); }), HasSubstr("first <= last"));
  EXPECT_THAT(error_of([] { expand_shards("a-{0..x}.tar"); }), HasSubstr("{0..x}"));
  EXPECT_THAT(error_of([] { expand_shards("a-{0..3.tar"); }), HasSubstr("\"{\" has no matching \"}\""));
  EXPECT_THAT(error_of([] { expand_shards("/nowhere/*.tar"); }), HasSubstr("no file matches /nowhere/*.tar"));
}

TEST(TensorSource, GivesRowsWithoutCopying) {
  const at::Tensor x = at::arange(12, at::kLong).view({4, 3});
  const SourcePtr source = from_tensors({{"x", x}, {"y", at::arange(4, at::kFloat)}});
  const Sample sample = source->read(2);
  const Field* field = sample.find("x");
  EXPECT_EQ(static_cast<const void*>(field->bytes.data()), x.const_data_ptr<int64_t>() + 6);
  EXPECT_EQ(field->sizes, c10::IntArrayRef({3}));
  EXPECT_TRUE(sample.find("y")->sizes.empty());
}

TEST(TensorSource, RefusesWhatDoesNotFit) {
  EXPECT_THAT(error_of([] { from_tensors({}); }), HasSubstr("at least one tensor"));
  EXPECT_THAT(error_of([] {
                from_tensors({{"a", at::zeros({3})}, {"b", at::zeros({4})}});
              }),
              HasSubstr("\"b\" has 4 rows, but \"a\" has 3"));
  EXPECT_THAT(error_of([] { from_tensors({{"a", at::zeros({})}}); }), HasSubstr("a scalar"));
}

TEST(Subset, KeepsTheIdsOfItsSource) {
  const SourcePtr numbers = std::make_shared<CountingSource>(10);
  const SourcePtr part = subset(subrange(numbers, 4, 9), {3, 0, 3});
  ASSERT_EQ(part->size(), 3);
  EXPECT_EQ(part->read(0).id, 7);
  EXPECT_EQ(part->read(1).id, 4);
  EXPECT_EQ(part->read(2).id, 7);
  EXPECT_THAT(error_of([&] { subset(numbers, {0, 10}); }), HasSubstr("indices in [0, 10), got 10"));
  EXPECT_THAT(error_of([&] { subrange(numbers, 3, 11); }), HasSubstr("[3, 11)"));
}

}  // namespace
}  // namespace bellows::data::testing
