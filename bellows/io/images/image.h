#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// Which channels a decoded image has.
/// gray: 1. rgb: 3. keep: as the file, 1 (gray), 2 (gray, alpha), 3 or 4 (RGB, alpha); a palette becomes RGB, CMYK
/// becomes RGB. gray and rgb drop an alpha channel without blending, as Pillow's convert() does.
enum class ColorMode { gray, rgb, keep };

enum class ImageFormat { png, jpeg };

/// What an image's header says.
struct ImageInfo {
  ImageFormat format = ImageFormat::png;
  int64_t width = 0;
  int64_t height = 0;
  int64_t channels = 0;  ///< that ColorMode::keep gives
  int64_t channels_as(ColorMode mode) const {
    return mode == ColorMode::keep ? channels : mode == ColorMode::rgb ? 3 : 1;
  }
  int64_t bytes_as(ColorMode mode) const { return width * height * channels_as(mode); }
};

/// Images with more pixels than this are refused before anything is allocated.
inline constexpr int64_t kMaxImagePixels = int64_t{1} << 28;

/// Reads only the header.
/// Params: where – names the image in errors
/// Throws: c10::ValueError – neither PNG nor JPEG, damaged header, too large
ImageInfo image_info(ByteSpan bytes, std::string_view where = "image");

/// Decodes a PNG or a JPEG, recognised by content.
/// Shapes:   uint8 [height, width, channels], contiguous
/// Numerics: PNG equals Pillow's convert("RGB") bit for bit; 16-bit samples lose their low byte. JPEG uses
/// libjpeg-turbo's accurate
///           DCT and smooth upsampling, as Pillow does (tests/io/image_test.cpp); gray of a JPEG is its luma. EXIF
///           rotation is not applied.
/// Threads:  safe from all threads
/// Throws:   c10::ValueError – not an image, truncated, corrupt, larger than kMaxImagePixels; the text starts with
/// `where` Ref:      torchvision.io.decode_image (which gives [C, H, W])
at::Tensor decode_image(ByteSpan bytes, ColorMode mode = ColorMode::rgb, std::string_view where = "image");

/// The same into memory of the caller, so that a loader fills a batch without a copy.
/// Params: out – at least image_info(bytes).bytes_as(mode) bytes; row after row, channels last, no padding
/// Throws: c10::ValueError – also when `out` is too small
ImageInfo decode_image_into(ByteSpan bytes, ColorMode mode, std::span<uint8_t> out, std::string_view where = "image");

/// A rectangle of pixels.
struct ImageRegion {
  int64_t y = 0, x = 0, height = 0, width = 0;
  bool operator==(const ImageRegion&) const = default;
};

/// What decode_image_part has to give.
struct PartOptions {
  ColorMode mode = ColorMode::rgb;
  ImageRegion region;  ///< of the whole image
  /// 1, 2, 4 or 8: so many rows and columns of a JPEG become one, cheaply, within its transform of blocks. A PNG is not
  /// shrunk.
  int64_t shrink = 1;
  /// JPEG: a rougher transform of blocks; where it is shrunk, colour is repeated instead of interpolated.
  bool fast = false;
};

/// A part of an image, in memory of the caller.
struct ImagePart {
  const uint8_t* pixels = nullptr;
  int64_t row_stride = 0;  ///< bytes from a row to the next
  int64_t channels = 0;
  ImageRegion region;  ///< what it covers, in pixels of the shrunk image: options.region / shrink, rounded outwards
};

/// Decodes what is needed of an image: a JPEG up to the region's last row, and only the blocks that the region and its
/// surroundings touch; where restart markers divide its rows evenly (jpeg_with_restarts), nothing else is read. A
/// progressive or CMYK JPEG and a PNG are decoded whole.
/// Params:   memory – grows as needed and is never shrunk; `pixels` points into it
/// Numerics: without shrink and fast, the bits of decode_image (tests/io/image_part_test.cpp)
/// Threads:  safe from all threads
/// Throws:   c10::ValueError – as decode_image, truncated files included; damage behind the region, or beside and above
///           it what was jumped over, is not looked for; a region that is empty or not within the image, another `shrink`
ImagePart decode_image_part(ByteSpan bytes, const PartOptions& options, std::vector<uint8_t>& memory,
                            std::string_view where = "image");

/// Params: image – uint8 [H, W] or [H, W, C] on the CPU with 1 (gray), 2 (gray, alpha), 3 or 4 (RGB, alpha) channels
///         level – zlib's effort, 0 to 9
/// Throws: c10::ValueError – other shape, dtype or device
Bytes encode_png(const at::Tensor& image, int level = 6);

/// Params: image   – uint8 [H, W] or [H, W, C] on the CPU with 1 (gray) or 3 (RGB) channels
///         quality – 1 to 100; colour is stored at half resolution (4:2:0)
/// Throws: c10::ValueError – other shape, dtype, device or quality
Bytes encode_jpeg(const at::Tensor& image, int quality = 90);

/// Codes a JPEG anew with restart markers in each row of blocks, so that decode_image_part jumps to what it needs
/// instead of reading everything before it.
/// Numerics: the coefficients stay as they are: all decoders give the same pixels. A progressive JPEG becomes a
///           sequential one, which decodes faster. EXIF, ICC and other markers are kept.
/// Returns:  `jpeg` itself where it has such markers already, and where they would not help: CMYK, arithmetic coding,
///           progressive JPEGs that leave out bits
/// Cost:     decodes and encodes the entropy code; sizes change by a few per cent
/// Threads:  safe from all threads
/// Throws:   c10::ValueError – no JPEG, truncated, corrupt; the text starts with `where`
Bytes jpeg_with_restarts(ByteSpan jpeg, std::string_view where = "image");

}  // namespace bellows::io
