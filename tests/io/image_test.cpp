#include "bellows/io/images/image.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include "bellows/io/tensors/safetensors.h"
#include "tests/io/support.h"

namespace bellows::io {

namespace {

/// 0 for PNG. Pillow brings a newer libjpeg-turbo than the system's; both use the accurate DCT, whose results are
/// specified bit for bit.
int64_t largest_difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return 256;
  return a.to(c10::kInt).sub(b.to(c10::kInt)).abs().max().item<int64_t>();
}

ColorMode mode_of(const std::string& name) {
  return name == "rgb" ? ColorMode::rgb : name == "gray" ? ColorMode::gray : ColorMode::keep;
}

at::Tensor ramp(int64_t height, int64_t width, int64_t channels) {
  return at::arange(height * width * channels).mul(7).remainder(256).to(c10::kByte).reshape({height, width, channels});
}

}  // namespace

TEST(ImageTest, DecodesAsPillow) {
  const SafetensorsFile pixels(golden("pixels.safetensors"));
  ASSERT_EQ(pixels.entries().size(), 18U * 3U);
  for (const SafetensorsEntry& entry : pixels.entries()) {
    const size_t colon = entry.name.find(':');
    const MappedFile file(golden("images/" + entry.name.substr(0, colon)));
    const ColorMode mode = mode_of(entry.name.substr(colon + 1));
    const at::Tensor image = decode_image(file.bytes(), mode, entry.name);
    EXPECT_EQ(image.sizes(), c10::IntArrayRef(entry.shape)) << entry.name;
    EXPECT_EQ(largest_difference(image, pixels.tensor(entry)), 0) << entry.name;
    const ImageInfo info = image_info(file.bytes());
    EXPECT_EQ(c10::IntArrayRef({info.height, info.width, info.channels_as(mode)}), image.sizes()) << entry.name;
  }
}

// A decoder of libjpeg-turbo that failed in a header reads the next image from the middle of it.
TEST(ImageTest, ADamagedImageDoesNotSpoilTheNext) {
  const std::string good = read_text_file(golden("images/420.jpg"));
  for (size_t at = 2; at < 700; at += 3) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0xff);
    try {
      decode_image(as_bytes(bad));
    } catch (const c10::ValueError&) {
    }
    ASSERT_EQ(decode_image(as_bytes(good)).size(0), 37) << at;
  }
}

TEST(ImageTest, DecodesIntoABatch) {
  const MappedFile file(golden("images/interlaced.png"));
  const at::Tensor batch = at::full({3, 13, 17, 3}, 9, at::TensorOptions().dtype(c10::kByte));
  const size_t bytes = 13 * 17 * 3;
  decode_image_into(file.bytes(), ColorMode::rgb, {batch.data_ptr<uint8_t>() + bytes, bytes});
  EXPECT_TRUE(batch.select(0, 1).equal(decode_image(file.bytes())));
  EXPECT_TRUE(batch.select(0, 0).eq(9).all().item<bool>() && batch.select(0, 2).eq(9).all().item<bool>());
  const std::string message = value_error([&] {
    decode_image_into(file.bytes(), ColorMode::rgb, {batch.data_ptr<uint8_t>(), bytes - 1}, "a.png");
  });
  EXPECT_TRUE(has(message, "a.png: an image of 17 × 13 × 3 needs 663 bytes, but the buffer has only 662")) << message;
}

TEST(ImageTest, PngRoundTripIsExact) {
  for (const int64_t channels : {1, 2, 3, 4}) {
    for (const auto& [height, width] : {std::pair{1, 1}, {15, 17}, {1, 300}}) {
      const at::Tensor image = ramp(height, width, channels);
      for (const int level : {0, 6}) EXPECT_TRUE(decode_image(encode_png(image, level), ColorMode::keep).equal(image));
    }
  }
  const at::Tensor strided = ramp(9, 8, 3).permute({1, 0, 2});
  EXPECT_TRUE(decode_image(encode_png(strided)).equal(strided));
  const at::Tensor flat = ramp(4, 5, 1).squeeze(2);
  EXPECT_TRUE(decode_image(encode_png(flat), ColorMode::keep).squeeze(2).equal(flat));
}

using ImageFileTest = FolderTest;

TEST_F(ImageFileTest, WritesFilesForOthers) {
  for (const char* name : {"rgb", "gray", "rgba", "gray_alpha"}) {
    const MappedFile source(golden("images/" + std::string(name) + ".png"));
    const at::Tensor image = decode_image(source.bytes(), ColorMode::keep);
    write_text_file(path(name + std::string(".png")), as_text(encode_png(image)));
    EXPECT_TRUE(decode_image(MappedFile(path(name + std::string(".png"))).bytes(), ColorMode::keep).equal(image))
        << name;
  }
  const MappedFile source(golden("images/rgb.png"));
  write_text_file(path("rgb.jpg"), as_text(encode_jpeg(decode_image(source.bytes()))));
  EXPECT_EQ(image_info(MappedFile(path("rgb.jpg")).bytes()).width, 17);
}

TEST(ImageTest, JpegRoundTripIsClose) {
  const at::Tensor smooth = at::arange(64).reshape({1, 64, 1}).mul(3).expand({48, 64, 3}).to(c10::kByte);
  EXPECT_LE(largest_difference(decode_image(encode_jpeg(smooth, 95)), smooth), 4);
  EXPECT_LE(largest_difference(decode_image(encode_jpeg(smooth.narrow(2, 0, 1), 95), ColorMode::keep),
                               smooth.narrow(2, 0, 1)),
            3);
  EXPECT_LT(encode_jpeg(smooth, 20).size(), encode_jpeg(smooth, 95).size());
}

TEST(ImageTest, RefusesWhatIsNotAnImageOrTooLarge) {
  EXPECT_TRUE(has(value_error([] { decode_image(as_bytes("<html>not found"), ColorMode::rgb, "x.png"); }),
                  "x.png: expected a PNG or JPEG image, found an HTML page"));
  EXPECT_TRUE(has(value_error([] { decode_image({}); }), "found an empty file"));
  std::string png = read_text_file(golden("images/rgb.png"));
  // IHDR's fields and checksum.
  const auto sized = [&](std::string_view fields) {
    png.replace(16, 17, fields);
    return value_error([&] { decode_image(as_bytes(png), ColorMode::rgb, "big.png"); });
  };
  const std::string big = sized({"\x00\x00\x9c\x40\x00\x00\x9c\x40\x08\x02\x00\x00\x00\xde\x6e\x99\x52", 17});
  EXPECT_TRUE(has(big, "big.png: an image of 40000 × 40000 pixels is too large. The limit is 268435456")) << big;
  const std::string bomb = sized({"\x00\x00\x27\x10\x00\x00\x27\x10\x08\x02\x00\x00\x00\x35\x2c\xf5\x70", 17});
  EXPECT_TRUE(has(bomb, "big.png: the PNG is truncated or corrupt: 10000 × 10000 pixels need more than 141 bytes"))
      << bomb;
  std::string jpeg = read_text_file(golden("images/420.jpg"));
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, "\xff\xdc\xff\xdc");
  const std::string refused = value_error([&] { decode_image(as_bytes(jpeg), ColorMode::rgb, "big.jpg"); });
  EXPECT_TRUE(has(refused, "big.jpg: an image of 65500 × 65500 pixels is too large")) << refused;
}

TEST(ImageTest, EncodersCheckTheirInput) {
  EXPECT_TRUE(has(value_error([] { encode_png(ramp(2, 2, 3).to(c10::kFloat)); }), "expected a uint8 tensor"));
  EXPECT_TRUE(has(value_error([] { encode_png(ramp(2, 2, 5)); }), "channels in the last dim, found 5"));
  EXPECT_TRUE(has(value_error([] { encode_png(at::Tensor()); }), "an undefined one"));
  EXPECT_TRUE(has(value_error([] { encode_jpeg(ramp(2, 2, 4)); }), "found 4"));
  EXPECT_TRUE(has(value_error([] { encode_jpeg(ramp(2, 2, 3), 0); }), "quality from 1 to 100"));
  EXPECT_TRUE(has(value_error([] { encode_png(ramp(2, 2, 3).narrow(0, 0, 0)); }), "found 2 × 0"));
}

}  // namespace bellows::io
