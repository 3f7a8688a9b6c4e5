#include <bit>

#include "bellows/io/crc32.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/targets.h"
#include "tests/io/pack_support.h"

namespace bellows::io {

namespace {

using namespace pack_testing;  // NOLINT: a test's own helpers

struct PackTest : FolderTest {};

std::string two_samples(const std::string& path) {
  return write_pack(path, {{"k", {file_part("cls", 2, '4')}}, {"", {array_part("x", c10::ScalarType::Short, {2})}}},
                    small_pages);
}

}  // namespace

TEST_F(PackTest, ReturnsWhatWasWritten) {
  write_pack(path("a.pack"), awkward(), small_pages);
  const PackReader reader(path("a.pack"));
  EXPECT_EQ(read_all(reader), awkward());
  EXPECT_EQ(reader.page_bytes(), 4096U);
  EXPECT_EQ(read(PackReader(path("a.pack"), PackVerify::always), 5), awkward()[5]);
  EXPECT_EQ(read(PackReader(path("a.pack"), PackVerify::never), 5), awkward()[5]);
}

TEST_F(PackTest, ArraysAreAlignedAndPlacesAreTrue) {
  const std::string bytes = write_pack(path("a.pack"), many(200, 1), small_pages);
  const PackReader reader(path("a.pack"));
  for (int64_t i = 0; i < reader.size(); ++i) {
    const PackRecord record = reader.record(i);
    for (size_t k = 0; k < record.size(); ++k) {
      const PackRecord::Item item = record.item(k);
      EXPECT_EQ(bytes.substr(item.offset, item.bytes.size()), as_text(item.bytes));
      if (!item.field->is_array) continue;
      EXPECT_EQ(item.offset % 64, 0U);
      EXPECT_EQ(std::bit_cast<uintptr_t>(item.bytes.data()) % 64, 0U);
    }
  }
}

TEST_F(PackTest, FieldsKeepTheirShapeWhereAllSamplesHaveIt) {
  write_pack(path("a.pack"), awkward());
  const PackReader reader(path("a.pack"));
  std::vector<std::string> fields;
  fields.reserve(reader.fields().size());
  for (const PackField& field : reader.fields())
    fields.push_back(field.name + (field.is_array ? field.fixed_shape ? " fixed" : " any" : ""));
  const std::vector<std::string> expected{"png",  "cls",     "image fixed", "label fixed", "image any",
                                          "json", "x fixed", "x2 fixed",    "jpg",         "x any"};
  EXPECT_EQ(fields, expected);
}

// The layout as docs/formats.md has it, byte by byte.
TEST_F(PackTest, LayoutIsTheDocumentedOne) {
  const std::string text = two_samples(path("a.pack"));
  const ByteSpan bytes = as_bytes(text);
  const auto u64 = [&](size_t at) { return load_little<uint64_t>(bytes, at); };
  const auto u32 = [&](size_t at) { return load_little<uint32_t>(bytes, at); };
  EXPECT_EQ(text.substr(0, 8),
            "\x89"
            "BWPACK\n");
  EXPECT_EQ(u32(8), 1U);
  EXPECT_EQ(u64(64), 43U) << "the first sample: 16 bytes of head, 24 for its field, 1 of key, 2 of data";
  EXPECT_EQ(u32(72), 1U);
  EXPECT_EQ(u32(76), 1U);
  EXPECT_EQ(u32(80), 0U) << "field";
  EXPECT_EQ(u64(88), 41U) << "offset in the sample";
  EXPECT_EQ(u64(96), 2U) << "bytes";
  EXPECT_EQ(text.substr(104, 3), "k44");
  EXPECT_EQ(u64(128), 68U) << "the second sample: aligned to 64, its array too";
  EXPECT_EQ(u32(144), 1U);
  EXPECT_EQ(u64(152), 64U);
  EXPECT_EQ(u64(160), 4U);
  const uint64_t block = 200 + 16 + 24;  // to the end of the sample, filled up to 8; two definitions
  EXPECT_EQ(u64(16), block);
  EXPECT_EQ(u32(12), crc32c(bytes.subspan(16, block - 16)));
  EXPECT_EQ(u32(40), 2U) << "samples";
  EXPECT_EQ(u32(44), 40U) << "bytes of definitions";
  EXPECT_EQ(u64(48), 4096U);
  EXPECT_EQ(text.substr(200, 16), std::string("\3\0\0\0\0\0\0\0cls\0\0\0\0\0", 16));
  EXPECT_EQ(text.substr(216, 24), std::string("\1\0\1\2\1\0\0\0\2\0\0\0\0\0\0\0x\0\0\0\0\0\0\0", 24));
}

TEST_F(PackTest, IndexAndFooterAreTheDocumentedOnes) {
  const std::string text = two_samples(path("a.pack"));
  const ByteSpan bytes = as_bytes(text);
  const auto u64 = [&](size_t at) { return load_little<uint64_t>(bytes, at); };
  const auto u32 = [&](size_t at) { return load_little<uint32_t>(bytes, at); };
  const uint64_t block = 240, index = 256, footer = index + 2 * 16 + 32 + 40;
  EXPECT_EQ(u64(index), 64U);
  EXPECT_EQ(u64(index + 8), 43U);
  EXPECT_EQ(u64(index + 16), 128U);
  EXPECT_EQ(u64(index + 32), 0U) << "the block's offset";
  EXPECT_EQ(u64(index + 40), block);
  EXPECT_EQ(u64(index + 48), 0U);
  EXPECT_EQ(u32(index + 56), 2U);
  EXPECT_EQ(u32(index + 60), u32(12));
  EXPECT_EQ(text.substr(index + 64, 40), text.substr(200, 40));
  ASSERT_EQ(text.size(), footer + 64);
  EXPECT_EQ(u64(footer), index);
  EXPECT_EQ(u64(footer + 8), footer - index);
  EXPECT_EQ(u64(footer + 16), 2U);
  EXPECT_EQ(u64(footer + 24), 1U);
  EXPECT_EQ(u32(footer + 32), 2U);
  EXPECT_EQ(u32(footer + 36), crc32c(bytes.subspan(index, footer - index)));
  EXPECT_EQ(u64(footer + 40), 4096U);
  EXPECT_EQ(u32(footer + 48), 1U);
  EXPECT_EQ(u32(footer + 52), crc32c(bytes.subspan(footer, 52)));
  EXPECT_EQ(text.substr(footer + 56), "BWPKEND\n");
}

// tools/goldens/pack.py, which was written from docs/formats.md alone.
TEST_F(PackTest, ReadsWhatASecondImplementationWrote) {
  using enum c10::ScalarType;
  const auto array = [](const std::string& name, c10::ScalarType dtype, std::vector<int64_t> sizes, std::string bytes) {
    return Part{name, std::move(bytes), true, dtype, std::move(sizes)};
  };
  std::string ramp;
  for (int i = 0; i < 9000; ++i) ramp.push_back(static_cast<char>(i % 251));
  const Items expected{{"a/0", {{"png", "not a picture"}}},
                       {"",
                        {array("image", Byte, {2, 3, 1}, {"\0\1\2\3\4\5", 6}),
                         array("tokens", Int, {3}, {"\1\0\0\0\xfe\xff\xff\xff\3\0\0\0", 12})}},
                       {"a/2", {array("tokens", Int, {0, 4}, ""), {"png", ""}}},
                       {"large", {{"jpg", ramp}}},
                       {"end", {}},
                       {"ü", {array("image", Byte, {2, 3, 1}, "\xff\xff\xff\xff\xff\xff")}}};
  const PackReader reader(golden("second.pack"));
  EXPECT_EQ(read_all(reader), expected);
  EXPECT_EQ(reader.block_starts(), (std::vector<int64_t>{0, 3, 4}));
}

TEST_F(PackTest, SamplesKeepToTheirPagesAndLargeOnesSpanWholeOnes) {
  write_pack(path("a.pack"), many(300, 2), small_pages);
  const PackReader reader(path("a.pack"));
  const std::vector<int64_t> starts = reader.block_starts();
  ASSERT_GT(starts.size(), 20U);
  EXPECT_EQ(starts.front(), 0);
  size_t block = 0;
  uint64_t first_page = 0;
  for (int64_t i = 0; i < reader.size(); ++i) {
    const PackRecord record = reader.record(i);
    const uint64_t page = record.item(0).offset / 4096;
    if (block < starts.size() && starts[block] == i) {
      ++block;
      first_page = page;
    }
    const bool large = record.item(record.size() - 1).bytes.size() == 10'000;
    for (size_t k = 0; k < record.size() && !large; ++k) {
      EXPECT_EQ(record.item(k).offset / 4096, first_page) << "sample " << i;
      EXPECT_EQ((record.item(k).offset + record.item(k).bytes.size()) / 4096, first_page) << "sample " << i;
    }
  }
  EXPECT_EQ(block, starts.size());
}

TEST_F(PackTest, EmptyPackIsAPack) {
  write_pack(path("a.pack"), {});
  const PackReader reader(path("a.pack"));
  EXPECT_EQ(reader.size(), 0);
  EXPECT_TRUE(reader.block_starts().empty());
  EXPECT_TRUE(has(value_error([&] { reader.record(0); }), "expected a sample from 0 to 0, got 0"));
}

TEST_F(PackTest, NothingIsLeftWithoutClose) {
  { PackWriter writer(path("a.pack")); }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST_F(PackTest, BadSamplesAreRefusedAndLeaveNoTrace) {
  PackWriter writer(path("a.pack"), small_pages);
  const auto refused = [&](const Item& item) { return value_error([&] { add(writer, item); }); };
  EXPECT_TRUE(has(refused({"k", {file_part("a", 1, 'x'), file_part("a", 2, 'x')}}), "two fields with the name \"a\""));
  EXPECT_TRUE(has(refused({"k", {file_part("", 1, 'x')}}), "name of 1 to 4096 bytes"));
  EXPECT_TRUE(has(refused({std::string(70'000, 'k'), {}}), "key of at most 65536 bytes"));
  Part wrong = array_part("new", c10::ScalarType::Float, {2});
  wrong.bytes += "x";
  EXPECT_TRUE(has(refused({"k", {file_part("unused", 1, 'x'), wrong}}),
                  "has 9 bytes, which does not match an array of Float [2]"));
  wrong.sizes = {-1, -9};
  EXPECT_TRUE(has(refused({"k", {wrong}}), "[-1, -9]"));
  wrong.dtype = c10::ScalarType::QInt8;
  EXPECT_TRUE(has(refused({"k", {wrong}}), "which packs do not support"));
  add(writer, awkward()[0]);
  writer.close();
  const PackReader reader(path("a.pack"));
  EXPECT_EQ(read_all(reader), Items{awkward()[0]});
  EXPECT_EQ(reader.fields().size(), 2U);
  EXPECT_TRUE(has(value_error([&] { PackWriter(path("b"), {.page_bytes = 5000}); }), "power of two"));
}

TEST_F(PackTest, OtherFilesAreNamed) {
  const std::string good = write_pack(path("a.pack"), awkward(), small_pages);
  const auto error = [](const std::string& bytes) { return value_error([&] { PackReader(as_bytes(bytes), "f"); }); };
  EXPECT_TRUE(has(error(""), "f: expected a pack, found"));
  EXPECT_TRUE(has(error("\x1f\x8b\x08 etc"), "found a gzip file"));
  EXPECT_TRUE(has(error(good.substr(0, 100)), "truncated: a pack has at least 128 bytes, but this file has 100"));
  EXPECT_TRUE(has(error(good.substr(0, good.size() - 1)), "truncated, or other data was appended"));
  EXPECT_TRUE(has(error(good + "x"), "truncated, or other data was appended"));
  std::string newer = good;
  newer[8] = 2;
  EXPECT_TRUE(has(error(newer), "the pack has version 2, but this program reads versions up to 1. Update"));
  std::string index = good;
  index[good.size() - 200] ^= 1;
  EXPECT_TRUE(has(error(index), "the index at byte"));
  EXPECT_TRUE(has(value_error([&] { PackReader(path("missing")); }), "No such file"));
}

TEST_F(PackTest, DamageIsFoundWhereItIs) {
  std::string bytes = write_pack(path("a.pack"), many(100, 3), small_pages);
  const PackReader good(path("a.pack"));
  const int64_t hit = good.block_starts()[2];
  bytes[good.record(hit).item(0).offset + 1] ^= 16;
  const PackReader first_use(as_bytes(bytes), "f"), never(as_bytes(bytes), "f", PackVerify::never),
      always(as_bytes(bytes), "f", PackVerify::always);
  EXPECT_EQ(read(first_use, 0), many(100, 3)[0]);
  const std::string message = value_error([&] { first_use.record(hit); });
  EXPECT_TRUE(has(message, "f: block 2 (page 2, bytes 8192 to ")) << message;
  EXPECT_TRUE(has(message, "is damaged: its checksum is")) << message;
  EXPECT_EQ(never.record(hit).size(), good.record(hit).size());
  EXPECT_EQ(read(always, 0), many(100, 3)[0]);
  bytes[good.record(0).item(0).offset] ^= 1;
  EXPECT_NO_THROW(first_use.record(0)) << "was good when it was looked at";
  value_error([&] { always.record(0); });
}

TEST_F(PackTest, EveryBitFlipIsFoundOrHarmless) {
  const Items items{awkward()[0], awkward()[1], awkward()[2], awkward()[4]};
  const std::string good = write_pack(path("a.pack"), items, small_pages);
  ASSERT_LT(good.size(), 4096U);
  std::string bytes = good;
  int harmless = 0;
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
    try {
      ASSERT_EQ(read_all(PackReader(as_bytes(bytes), "f")), items) << "bit " << bit;
      ++harmless;
    } catch (const c10::ValueError&) {
    }
    bytes[bit / 8] = good[bit / 8];
  }
  EXPECT_LE(harmless, 8 * (4 + 56)) << "the header's copy of the checksum, and the fill before the index";
}

TEST_F(PackTest, EveryTruncationIsFound) {
  const std::string good = write_pack(path("a.pack"), awkward(), small_pages);
  for (size_t length = 0; length < good.size(); ++length)
    ASSERT_NE(value_error([&] { PackReader(as_bytes(std::string_view(good).substr(0, length)), "f"); }), "");
}

TEST_F(PackTest, MutatedPacks) {
  Items items = awkward();
  items.erase(items.begin() + 5);
  const std::string a = write_pack(path("a.pack"), items, small_pages), b = write_pack(path("b.pack"), {});
  std::vector<Bytes> seeds;
  for (const std::string& seed : {a, b}) seeds.emplace_back(as_bytes(seed).begin(), as_bytes(seed).end());
  fuzz::sample_fuzzing(seeds, fuzz::pack);
}

TEST(Crc32c, EveryLengthAndPiece) {
  std::string text;
  uint32_t slow = ~0U;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(crc32c(as_bytes(text)), ~slow) << i;
    const std::string_view whole = text;
    for (const size_t cut : {size_t{0}, text.size() / 3, text.size()})
      EXPECT_EQ(crc32c(as_bytes(whole.substr(cut)), crc32c(as_bytes(whole.substr(0, cut)))), ~slow);
    text.push_back(static_cast<char>(i * 37));
    slow ^= static_cast<uint8_t>(text.back());
    for (int bit = 0; bit < 8; ++bit) slow = (slow >> 1) ^ (slow & 1 ? 0x82f63b78U : 0U);
  }
}

}  // namespace bellows::io
