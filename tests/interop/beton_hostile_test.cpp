#include <algorithm>

#include "bellows/io/records/beton.h"
#include "tests/fuzz/targets.h"
#include "tests/interop/beton_support.h"
#include "tests/io/support.h"

namespace bellows::io {

using BetonHostileTest = FolderTest;

namespace {

constexpr uint64_t kPage = 2 << 20, kSmallPage = 8192;
constexpr size_t kFieldAt = 24, kFieldBytes = 1041, kRowsAt = kFieldAt + 5 * kFieldBytes, kRowBytes = 64;
constexpr size_t kPointersAt[] = {5, 24, 32, 48};  // in a row: image, box, meta, text

void store(std::string& file, size_t at, uint64_t value, size_t bytes = 8) {
  for (size_t i = 0; i < bytes; ++i) file[at + i] = static_cast<char>(value >> (8 * i));
}

/// Three samples of five fields, as the writer lays them out, but with pages of 8 KiB: reading knows no least size.
std::string small_beton(const std::string& path) {
  const std::string pixels(12, 'p'), box(8, 'b');
  BetonWriter writer(path,
                     {{"image", BetonType::image},
                      {"label", BetonType::int64},
                      {"box", BetonType::array, c10::ScalarType::Float, {2, 1}},
                      {"meta", BetonType::json},
                      {"text", BetonType::bytes}},
                     kPage);
  for (uint64_t i = 0; i < 3; ++i) {
    writer.add({{.bytes = as_bytes(pixels), .height = 2, .width = 2},
                {.bytes = std::as_bytes(std::span(&i, 1))},
                {.bytes = as_bytes(box)},
                {.bytes = as_bytes("{}")},
                {.bytes = as_bytes("text")}});
  }
  writer.close();
  const std::string large = read_text_file(path);
  std::string file = large.substr(0, kSmallPage) + large.substr(kPage, kSmallPage) + large.substr(2 * kPage);
  store(file, 4, kSmallPage, 4);
  store(file, 16, 2 * kSmallPage);
  const auto moved = [&](size_t at) {
    store(file, at, load_little<uint64_t>(as_bytes(file), at) - kPage + kSmallPage);
  };
  for (size_t sample = 0; sample < 3; ++sample) {
    for (size_t k = 0; k < 4; ++k) {
      moved(kRowsAt + sample * kRowBytes + kPointersAt[k]);
      moved(2 * kSmallPage + (sample * 4 + k) * 24 + 8);
    }
  }
  return file;
}

/// What reading one sample says; "" when it is read.
std::string reading(const std::string& file, int64_t sample) {
  const Bytes copy(as_bytes(file).begin(), as_bytes(file).end());  // AddressSanitizer sees where it ends
  try {
    const BetonReader reader(copy, "x.beton");
    for (size_t k = 0; k < reader.fields().size(); ++k) {
      const BetonValue value = reader.read(sample, k);
      uint64_t sum = 0;
      for (const std::byte b : value.bytes) sum += std::to_integer<uint64_t>(b);
      if (sum == UINT64_MAX) return "never";
    }
  } catch (const c10::ValueError& error) {
    return user_message(error);
  }
  return "";
}

}  // namespace

TEST_F(BetonHostileTest, CutFilesThrowWhereverTheyEnd) {
  const std::string file = small_beton(path("cut.beton"));
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(reading(file, i), "");
  for (size_t length = 0; length < file.size(); ++length)
    ASSERT_NE(reading(file.substr(0, length), 0), "") << "cut after " << length << " bytes passes";
  EXPECT_TRUE(has(reading(file + "more", 0), "expected 12 entries of 24 bytes"));
}

TEST_F(BetonHostileTest, FlippedBitsAreRefusedOrHarmless) {
  std::string file = small_beton(path("flip.beton"));
  for (size_t at = 0; at < file.size(); ++at) {
    const size_t bits = file[at] == 0 ? 1 : 8;  // most of the file is padding
    for (size_t bit = 0; bit < bits; ++bit) {
      file[at] = static_cast<char>(file[at] ^ (1 << bit));
      for (int64_t i = 0; i < 3; ++i) reading(file, i);
      fuzz::beton(as_bytes(file));
      file[at] = static_cast<char>(file[at] ^ (1 << bit));
    }
  }
}

TEST_F(BetonHostileTest, FlippedPointersHurtTheirSampleOnly) {
  std::string file = small_beton(path("pointer.beton"));
  const auto expect_refused = [&](size_t at, size_t bytes, int64_t sample) {
    for (size_t bit = 0; bit < 8 * bytes; ++bit) {
      char& byte = file[at + bit / 8];
      byte = static_cast<char>(byte ^ (1 << bit % 8));
      for (int64_t i = 0; i < 3; ++i)
        ASSERT_EQ(reading(file, i) != "", i == sample) << "byte " << at << ", bit " << bit;
      byte = static_cast<char>(byte ^ (1 << bit % 8));
    }
  };
  for (size_t sample = 0; sample < 3; ++sample) {
    const size_t row = kRowsAt + sample * kRowBytes;
    for (const size_t pointer : kPointersAt) expect_refused(row + pointer, 8, static_cast<int64_t>(sample));
    expect_refused(row, 5, static_cast<int64_t>(sample));       // the image's mode and sides
    expect_refused(row + 40, 8, static_cast<int64_t>(sample));  // sizes of JSON and bytes
    expect_refused(row + 56, 8, static_cast<int64_t>(sample));
    expect_refused(2 * kSmallPage + sample * 96, 96, static_cast<int64_t>(sample));  // the allocation table
  }
}

TEST_F(BetonHostileTest, SaysWhatIsWrongAndWhere) {
  const std::string good = small_beton(path("good.beton"));
  const auto with = [&](size_t at, uint64_t value, size_t bytes) {
    std::string file = good;
    store(file, at, value, bytes);
    return reading(file, 1);
  };
  EXPECT_TRUE(has(reading("", 0), "x.beton: expected a .beton file of version 2, found an empty file"));
  EXPECT_TRUE(has(with(0, 1, 2), "expected a .beton file of version 2, found"));
  EXPECT_TRUE(has(with(4, 8191, 4), "expected a .beton file of version 2, found"));
  EXPECT_TRUE(has(with(16, 0, 8), "x.beton: the file is incomplete"));
  EXPECT_TRUE(has(with(16, 1 << 20, 8), "truncated: the allocation table begins at byte 1048576"));
  EXPECT_TRUE(has(with(8, UINT64_MAX, 8), "expected 18446744073709551615 rows of 64 bytes between byte 5229"));
  EXPECT_TRUE(has(with(kFieldAt, 255, 1), "field \"image\" (byte 24) has a custom type of the writer"));
  const size_t box = kFieldAt + 2 * kFieldBytes + 17;
  EXPECT_TRUE(has(with(box + 264 + 7, '>', 1), "the NumPy type \"[[\\x22\\x22, \\x22>f4"));
  EXPECT_TRUE(has(with(box + 256, 761, 8), "describes its type with 761 bytes, but the limit is 760"));
  EXPECT_TRUE(has(with(box, uint64_t{1} << 62, 8), "larger than a page of 8192 bytes: size 4611686018427387904"));
  EXPECT_TRUE(has(with(box, 0, 8), "arrays without a size"));
  EXPECT_TRUE(has(with(kFieldAt + kFieldBytes + 1, 0x6567616d69, 8), "two fields are called \"image\""));
  const size_t row = kRowsAt + kRowBytes;
  EXPECT_TRUE(has(with(row, 2, 1), "x.beton: sample 1, \"image\" (its row at byte 5293): expected image mode 0"));
  EXPECT_TRUE(has(with(row + 1, 0, 2), "expected an image with pixels, found 0 x 2"));
  EXPECT_TRUE(has(with(row + 5, 99, 8), "points to byte 99, where the allocation table has no entry for it"));
  EXPECT_TRUE(has(with(row + 1, 3, 2), "expected 18 bytes at byte"));
  const size_t begin = good.find("{}");
  EXPECT_TRUE(has(with(good.find("{}", begin + 1) + 2, 'x', 1), "expected JSON that ends in a NUL, found \"{}x\""));
}

TEST_F(BetonHostileTest, PointersStayInsideOnePage) {
  const std::string good = small_beton(path("good.beton"));
  const auto moved_to = [&](uint64_t pointer) {
    std::string file = good;
    store(file, kRowsAt + 24, pointer);
    store(file, 2 * kSmallPage + 24 + 8, pointer);
    return reading(file, 0);
  };
  EXPECT_EQ(moved_to(kSmallPage + 100), "");
  EXPECT_EQ(moved_to(2 * kSmallPage - 8), "");
  for (const uint64_t pointer :
       {uint64_t{0}, kSmallPage - 8, kSmallPage - 1, 2 * kSmallPage - 7, 2 * kSmallPage, UINT64_MAX - 7, UINT64_MAX})
    EXPECT_TRUE(
        has(moved_to(pointer), "expected 8 bytes inside one page of 8192 bytes between byte 8192 and byte 16384"))
        << pointer;
}

}  // namespace bellows::io
