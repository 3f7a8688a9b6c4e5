#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <tuple>

#include <jpeglib.h>  // wants FILE

#include "bellows/core/seed.h"
#include "bellows/io/images/image.h"
#include "tests/io/support.h"

namespace bellows::io {

namespace {

struct Kind {
  int horizontal = 1, vertical = 1;  // values of luma for one of colour
  int restart_rows = 0;
  bool progressive = false, gray = false, scan_a_channel = false;
  unsigned restart_units = 0;
};

/// Smooth shapes with edges and some noise, as photographs have.
std::vector<uint8_t> scene(int64_t height, int64_t width, int64_t channels) {
  RandomStream random(static_cast<uint64_t>(height * 1000 + width));
  std::vector<uint8_t> pixels;
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < channels; ++c) {
        const double wave = std::sin(0.11 * static_cast<double>(x * (c + 1))) * std::cos(0.07 * static_cast<double>(y));
        const double edge = (x / 13 + y / 9) % 3 == c ? 60 : 0;
        pixels.push_back(static_cast<uint8_t>(100 + 60 * wave + edge + 20 * random.uniform()));
      }
    }
  }
  return pixels;
}

Bytes jpeg_of(int64_t height, int64_t width, const Kind& kind) {
  const int64_t channels = kind.gray ? 1 : 3;
  std::vector<uint8_t> pixels = scene(height, width, channels);
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = static_cast<int>(channels);
  info.in_color_space = kind.gray ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 90, TRUE);
  info.comp_info[0].h_samp_factor = kind.horizontal;
  info.comp_info[0].v_samp_factor = kind.vertical;
  info.restart_in_rows = kind.restart_rows;
  info.restart_interval = kind.restart_units;
  if (kind.progressive) jpeg_simple_progression(&info);
  const jpeg_scan_info scans[] = {{1, {0}, 0, 63, 0, 0}, {1, {1}, 0, 63, 0, 0}, {1, {2}, 0, 63, 0, 0}};
  if (kind.scan_a_channel) {
    info.scan_info = scans;
    info.num_scans = 3;
  }
  jpeg_start_compress(&info, TRUE);
  for (int64_t y = 0; y < height; ++y) {
    JSAMPROW row = pixels.data() + y * width * channels;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  const auto* begin = reinterpret_cast<const std::byte*>(memory);
  Bytes bytes(begin, begin + size);
  std::free(memory);
  return bytes;
}

const std::vector<std::pair<std::string, Kind>>& kinds() {
  static const std::vector<std::pair<std::string, Kind>> all = {
      {"444", {1, 1}},
      {"422", {2, 1}},
      {"420", {2, 2}},
      {"440", {1, 2}},
      {"411", {4, 1}},
      {"410", {4, 2}},
      {"420 with restarts", {2, 2, 1}},
      {"422 with a restart every 2 rows", {2, 1, 2}},
      {"440 with a restart every 3 rows", {1, 2, 3}},
      {"420 with a restart every 3 units", {2, 2, 0, false, false, false, 3}},
      {"444 with restarts everywhere", {1, 1, 0, false, false, false, 1}},
      {"411 with restarts everywhere", {4, 1, 0, false, false, false, 1}},
      {"gray with restarts everywhere", {1, 1, 0, false, true, false, 1}},
      {"restarts anywhere", {2, 2, 0, false, false, false, 7}},
      {"420 progressive", {2, 2, 0, true}},
      {"gray", {1, 1, 0, false, true}},
      {"a scan a channel", {2, 2, 0, false, false, true}},
  };
  return all;
}

ImageRegion some_region(RandomStream& random, int64_t height, int64_t width) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random.below(static_cast<uint64_t>(n))); };
  ImageRegion r;
  r.height = 1 + below(height);
  r.width = 1 + below(width);
  r.y = below(height - r.height + 1);
  r.x = below(width - r.width + 1);
  return r;
}

/// Whether `part` has the pixels of the whole image there.
bool equals(const ImagePart& part, const at::Tensor& whole) {
  const int64_t row = part.region.width * part.channels;
  if (whole.size(2) != part.channels) return false;
  const auto* from = whole.const_data_ptr<uint8_t>() + (part.region.y * whole.size(1) + part.region.x) * part.channels;
  for (int64_t y = 0; y < part.region.height; ++y) {
    if (!std::equal(from, from + row, part.pixels + y * part.row_stride)) return false;
    from += whole.size(1) * part.channels;
  }
  return true;
}

std::string text(const ImageRegion& r) {
  return c10::str("y ", r.y, " x ", r.x, " ", r.height, " x ", r.width);
}

}  // namespace

TEST(ImagePart, EqualsTheWholeImageThere) {
  std::vector<uint8_t> memory;
  RandomStream random(3);
  for (const auto& [name, kind] : kinds()) {
    for (const auto& [height, width] : {std::pair{97, 131}, {48, 64}, {17, 300}, {1, 1}, {65, 7}}) {
      const Bytes bytes = jpeg_of(height, width, kind);
      for (const ColorMode mode : {ColorMode::rgb, ColorMode::gray, ColorMode::keep}) {
        const at::Tensor whole = decode_image(bytes, mode);
        for (int i = 0; i < 40; ++i) {
          const ImageRegion region = some_region(random, height, width);
          const ImagePart part = decode_image_part(bytes, {mode, region}, memory);
          ASSERT_EQ(part.region, region);
          ASSERT_TRUE(equals(part, whole)) << name << " " << height << " x " << width << ": " << text(region);
        }
      }
    }
  }
}

TEST(ImagePart, OfOtherFormatsToo) {
  std::vector<uint8_t> memory;
  RandomStream random(4);
  for (const char* name : {"interlaced.png", "rgb16.png", "palette_alpha.png", "cmyk.jpg", "progressive.jpg"}) {
    const MappedFile file(golden(std::string("images/") + name));
    for (const ColorMode mode : {ColorMode::rgb, ColorMode::gray, ColorMode::keep}) {
      const at::Tensor whole = decode_image(file.bytes(), mode);
      for (int i = 0; i < 10; ++i) {
        const ImageRegion region = some_region(random, whole.size(0), whole.size(1));
        EXPECT_TRUE(equals(decode_image_part(file.bytes(), {mode, region}, memory), whole)) << name << text(region);
      }
    }
  }
}

TEST(ImagePart, ShrunkAndFastEqualsTheWholeImageDecodedSo) {
  std::vector<uint8_t> memory, whole_memory;
  RandomStream random(5);
  for (const auto& [name, kind] : kinds()) {
    const Bytes bytes = jpeg_of(97, 131, kind);
    for (const int64_t shrink : {1, 2, 4, 8}) {
      PartOptions options{ColorMode::rgb, {0, 0, 97, 131}, shrink, true};
      const ImagePart whole = decode_image_part(bytes, options, whole_memory);
      EXPECT_EQ(whole.region, (ImageRegion{0, 0, (97 + shrink - 1) / shrink, (131 + shrink - 1) / shrink}));
      for (int i = 0; i < 20; ++i) {
        options.region = some_region(random, 97, 131);
        const ImagePart part = decode_image_part(bytes, options, memory);
        const ImageRegion &r = part.region, &o = options.region;
        EXPECT_EQ(r.y, o.y / shrink);
        EXPECT_EQ(r.x + r.width, (o.x + o.width + shrink - 1) / shrink);
        for (int64_t y = 0; y < r.height; ++y) {
          const uint8_t* there = whole.pixels + (r.y + y) * whole.row_stride + r.x * 3;
          ASSERT_TRUE(std::equal(there, there + r.width * 3, part.pixels + y * part.row_stride))
              << name << " / " << shrink << " " << text(o) << ", row " << y;
        }
      }
    }
  }
}

// A file that was cut off, and damage before the region's end, are errors; what comes after is not looked at.
TEST(ImagePart, OfACutOffFileIsAnError) {
  std::vector<uint8_t> memory;
  for (const auto& [name, kind] : kinds()) {
    const Bytes whole = jpeg_of(97, 131, kind);
    const PartOptions top{ColorMode::rgb, {2, 30, 20, 40}};
    EXPECT_NO_THROW(decode_image_part(whole, top, memory)) << name;
    for (size_t length = 0; length < whole.size(); length += length + 40 < whole.size() ? 7 : 1) {
      const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
      EXPECT_NE(value_error([&] { decode_image_part(cut, top, memory); }), "") << name << " cut after " << length;
    }
  }
}

TEST(ImagePart, OfADamagedFileIsRightOrAnError) {
  std::vector<uint8_t> memory;
  for (const unsigned restart_units : {0, 1}) {
    const Bytes good = jpeg_of(60, 70, {2, 2, 0, false, false, false, restart_units});
    const at::Tensor whole = decode_image(good);
    const PartOptions middle{ColorMode::rgb, {9, 30, 20, 40}};
    for (size_t at = 0; at < good.size(); at += 3) {
      Bytes bad = good;
      bad[at] ^= std::byte{0x10};
      try {
        const ImagePart part = decode_image_part(bad, middle, memory);
        EXPECT_EQ(part.region.height, 20);
      } catch (const c10::ValueError&) {
      }
      ASSERT_TRUE(equals(decode_image_part(good, middle, memory), whole)) << "after a flip at " << at;
    }
  }
}

TEST(ImagePart, OfMorePixelsThanTheFileCanHoldIsRefused) {
  std::vector<uint8_t> memory;
  for (const bool progressive : {false, true}) {
    const Bytes good = jpeg_of(64, 64, {1, 1, 0, progressive});
    std::string bomb(reinterpret_cast<const char*>(good.data()), good.size());
    const size_t frame = bomb.find(progressive ? "\xff\xc2" : "\xff\xc0");
    ASSERT_NE(frame, std::string::npos);
    bomb.replace(frame + 5, 4, std::string("\x40\x00\x40\x00", 4));
    const std::string message = value_error([&] {
      decode_image_part(as_bytes(bomb), {ColorMode::rgb, {0, 0, 8, 8}}, memory, "bomb.jpg");
    });
    EXPECT_TRUE(has(message, "bomb.jpg: the JPEG data is truncated or corrupt: 16384 × 16384 pixels need more than"))
        << message;
    EXPECT_TRUE(memory.empty());
  }
}

// What is between restart markers beside and above the region is not read at all.
TEST(ImagePart, JumpsOverRestartIntervals) {
  std::vector<uint8_t> memory;
  for (const Kind kind : {Kind{2, 2, 1}, Kind{2, 2, 0, false, false, false, 2}}) {
    const Bytes good = jpeg_of(160, 192, kind);
    const at::Tensor whole = decode_image(good);
    std::string damaged(as_text(good));
    const size_t first = damaged.find("\xff\xd0"), second = damaged.find("\xff\xd1");
    for (size_t at = first + 2; at + 1 < second; at += 2) damaged.replace(at, 2, std::string("\xff\0", 2));
    const PartOptions below{ColorMode::rgb, {64, 64, 60, 60}}, beside{ColorMode::rgb, {0, 96, 100, 60}};
    EXPECT_TRUE(equals(decode_image_part(as_bytes(damaged), below, memory), whole));
    const auto decode_beside = [&] { decode_image_part(as_bytes(damaged), beside, memory); };
    if (kind.restart_units > 0) {
      EXPECT_NO_THROW(decode_beside());
    } else {
      EXPECT_TRUE(has(value_error(decode_beside), "Corrupt JPEG data: bad Huffman code"));
    }
    EXPECT_TRUE(has(value_error([&] { decode_image(as_bytes(damaged)); }), "Corrupt JPEG data: bad Huffman code"));

    std::string disordered(as_text(good));
    disordered.replace(second, 2, "\xff\xd3");
    const std::string message = value_error([&] { decode_image_part(as_bytes(disordered), below, memory, "a.jpg"); });
    EXPECT_TRUE(
        has(message, "a.jpg: the JPEG data is truncated or corrupt: Corrupt JPEG data: found marker 0xd3 instead of"))
        << message;
  }
}

TEST(JpegWithRestarts, HasTheSamePixels) {
  std::vector<uint8_t> memory;
  RandomStream random(6);
  for (const auto& [name, kind] : kinds()) {
    for (const auto& [height, width] : {std::pair{97, 131}, {128, 224}, {17, 300}, {1, 1}, {65, 7}}) {
      const Bytes before = jpeg_of(height, width, kind), after = jpeg_with_restarts(before);
      EXPECT_NE(as_text(after).find("\xff\xdd"), std::string_view::npos) << name;
      EXPECT_TRUE(jpeg_with_restarts(after) == after) << name << ": they are there already";
      for (const ColorMode mode : {ColorMode::rgb, ColorMode::gray, ColorMode::keep}) {
        const at::Tensor whole = decode_image(before, mode);
        const ImageRegion all{0, 0, height, width};
        EXPECT_TRUE(equals(decode_image_part(after, {mode, all}, memory), whole)) << name;
        for (int i = 0; i < 20; ++i) {
          const ImageRegion region = some_region(random, height, width);
          const ImagePart part = decode_image_part(after, {mode, region}, memory);
          ASSERT_TRUE(equals(part, whole)) << name << " " << height << " x " << width << ": " << text(region);
        }
      }
    }
  }
}

TEST(JpegWithRestarts, KeepsTheMarkers) {
  std::string marked(as_text(jpeg_of(40, 64, {2, 2})));
  const std::string extra = std::string("\xff\xe1\0\x0a", 4) + "Exif1234" + std::string("\xff\xe2\0\x0d", 4) +
                            "ICC_PROFILE" + std::string("\xff\xfe\0\x07", 4) + "hello";
  marked.insert(20, extra);  // behind the first marker, JFIF's
  const Bytes after = jpeg_with_restarts(as_bytes(marked));
  EXPECT_NE(as_text(after).find(extra), std::string_view::npos);
  EXPECT_EQ(as_text(after).find("JFIF"), as_text(after).rfind("JFIF")) << "once";
  EXPECT_TRUE(decode_image(after).equal(decode_image(as_bytes(marked))));
}

TEST(JpegWithRestarts, LeavesOthersAlone) {
  const MappedFile cmyk(golden("images/cmyk.jpg"));
  EXPECT_EQ(as_text(jpeg_with_restarts(cmyk.bytes())), as_text(cmyk.bytes()));
  const Bytes good = jpeg_of(97, 131, {2, 2});
  for (const size_t length : {size_t{0}, size_t{100}, good.size() / 2}) {
    const std::string message = value_error([&] { jpeg_with_restarts(ByteSpan(good).first(length), "a.jpg"); });
    EXPECT_TRUE(has(message, "a.jpg: the JPEG ")) << message;
  }
}

// Each scan is a pass over the whole image, for a few bytes in the file.
TEST(ImagePart, OfThousandsOfScansIsRefused) {
  const Bytes good = jpeg_of(64, 64, {1, 1, 0, false, false, true});
  const std::string_view text(reinterpret_cast<const char*>(good.data()), good.size());
  const size_t last_scan = text.rfind("\xff\xda");
  std::string bomb(text.substr(0, last_scan));
  for (int i = 0; i < 1000; ++i) bomb += text.substr(last_scan, text.size() - 2 - last_scan);
  bomb += text.substr(text.size() - 2);
  const std::string message = value_error([&] { decode_image(as_bytes(bomb), ColorMode::rgb, "bomb.jpg"); });
  EXPECT_TRUE(has(message, "bomb.jpg: the JPEG data is truncated or corrupt: more than 500 scans")) << message;
}

TEST(ImagePart, HasToLieInTheImage) {
  std::vector<uint8_t> memory;
  const Bytes bytes = jpeg_of(20, 30, {2, 2});
  constexpr int64_t huge = INT64_MAX;
  for (const ImageRegion region : {ImageRegion{0, 0, 21, 30},
                                   {0, 0, 20, 31},
                                   {1, 0, 20, 30},
                                   {0, -1, 5, 5},
                                   {0, 0, 0, 5},
                                   {huge, 0, 1, 1},
                                   {0, huge, 1, huge},
                                   {0, 0, huge, huge}}) {
    const std::string message = value_error([&] { decode_image_part(bytes, {ColorMode::rgb, region}, memory, "a"); });
    EXPECT_TRUE(has(message, "a: expected a part of an image of 20 rows and 30 columns")) << message;
  }
  EXPECT_TRUE(has(value_error([&] {
                    decode_image_part(bytes, {ColorMode::rgb, {0, 0, 8, 8}, 3}, memory);
                  }),
                  "shrink by 1, 2, 4 or 8, found 3"));
}

}  // namespace bellows::io
