#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// The channels of a decoded image.
/// - gray: 1
/// - rgb: 3
/// - keep: as in the file, 1 (gray), 2 (gray, alpha), 3 (RGB) or 4 (RGB, alpha); palette and CMYK images become RGB
///
/// gray and rgb drop an alpha channel without blending, like Pillow's convert().
enum class ColorMode { gray, rgb, keep };

enum class ImageFormat { png, jpeg };

/// The properties in an image's header.
struct ImageInfo {
  ImageFormat format = ImageFormat::png;
  int64_t width = 0;
  int64_t height = 0;
  int64_t channels = 0;  ///< with ColorMode::keep
  int64_t channels_as(ColorMode mode) const {
    return mode == ColorMode::keep ? channels : mode == ColorMode::rgb ? 3 : 1;
  }
  int64_t bytes_as(ColorMode mode) const { return width * height * channels_as(mode); }
};

/// Images with more pixels are rejected before any memory is allocated.
inline constexpr int64_t kMaxImagePixels = int64_t{1} << 28;

/// Reads only the header.
/// Params: where – names the image in errors
/// Throws: c10::ValueError if the image is neither PNG nor JPEG, has a damaged header or is too large
ImageInfo image_info(ByteSpan bytes, std::string_view where = "image");

/// Decodes a PNG or a JPEG; the format is detected from the content.
/// Shapes:   uint8 [height, width, channels], contiguous
/// Numerics: PNG is bit-identical to Pillow's convert("RGB"); 16-bit samples lose their low byte. JPEG uses
///           libjpeg-turbo's accurate DCT and smooth upsampling, like Pillow (tests/io/image_test.cpp); gray of a JPEG
///           is its luma. EXIF rotation is not applied
/// Threads:  thread-safe
/// Throws:   c10::ValueError if the input is not an image, is truncated or corrupt, or is larger than kMaxImagePixels;
///           the message starts with `where`
/// Ref:      torchvision.io.decode_image (which returns [C, H, W])
at::Tensor decode_image(ByteSpan bytes, ColorMode mode = ColorMode::rgb, std::string_view where = "image");

/// Decodes into the caller's memory, so that a loader fills a batch without a copy.
/// Params: out – at least image_info(bytes).bytes_as(mode) bytes; row by row, channels last, no padding
/// Throws: c10::ValueError as decode_image, or if `out` is too small
ImageInfo decode_image_into(ByteSpan bytes, ColorMode mode, std::span<uint8_t> out, std::string_view where = "image");

/// A rectangle of pixels.
struct ImageRegion {
  int64_t y = 0, x = 0, height = 0, width = 0;
  bool operator==(const ImageRegion&) const = default;
};

/// Options of decode_image_part.
struct PartOptions {
  ColorMode mode = ColorMode::rgb;
  ImageRegion region;  ///< of the whole image
  /// 1, 2, 4 or 8: JPEGs are shrunk by this factor in both directions, at low cost, within the inverse DCT. PNGs are
  /// not shrunk.
  int64_t shrink = 1;
  /// JPEG: uses a less precise inverse DCT and, for shrunk images, repeats chroma values instead of interpolating them.
  bool fast = false;
};

/// A part of an image, in the caller's memory.
struct ImagePart {
  const uint8_t* pixels = nullptr;
  int64_t row_stride = 0;  ///< bytes from a row to the next
  int64_t channels = 0;
  ImageRegion region;  ///< in pixels of the shrunk image: options.region / shrink, rounded outwards
};

/// Decodes the required part of an image: a JPEG up to the region's last row, and only the blocks in and next to the
/// region. If restart markers divide the JPEG's rows evenly (jpeg_with_restarts), nothing else is read. Progressive and
/// CMYK JPEGs and PNGs are decoded completely.
/// Params:   memory – grows as needed and never shrinks; `pixels` points into it
/// Numerics: without shrink and fast, bit-identical to decode_image (tests/io/image_part_test.cpp)
/// Threads:  thread-safe
/// Throws:   c10::ValueError as decode_image, including truncated files; if the region is empty or not within the
///           image; if `shrink` is none of these values. Damage after the region, or in skipped parts beside and above
///           it, is not detected
ImagePart decode_image_part(ByteSpan bytes, const PartOptions& options, std::vector<uint8_t>& memory,
                            std::string_view where = "image");

/// Params: image – uint8 [H, W] or [H, W, C] on the CPU with 1 (gray), 2 (gray, alpha), 3 or 4 (RGB, alpha) channels
///         level – zlib's compression level, 0 to 9
/// Throws: c10::ValueError if the shape, the dtype or the device differs
Bytes encode_png(const at::Tensor& image, int level = 6);

/// Params: image – uint8 [H, W] or [H, W, C] on the CPU with 1 (gray) or 3 (RGB) channels
///         quality – 1 to 100; chroma is stored at half resolution (4:2:0)
/// Throws: c10::ValueError if the shape, the dtype, the device or the quality is invalid
Bytes encode_jpeg(const at::Tensor& image, int quality = 90);

/// Re-encodes a JPEG with restart markers in each row of blocks, so that decode_image_part can jump to the required
/// blocks.
/// Numerics: the coefficients stay unchanged, so all decoders return the same pixels. A progressive JPEG becomes a
///           sequential one, which decodes faster. EXIF, ICC and other markers are kept
/// Returns:  `jpeg` itself if it already has such markers or would not benefit: CMYK, arithmetic coding, progressive
///           JPEGs with missing bits
/// Cost:     decodes and encodes the entropy code; sizes change by a few per cent
/// Threads:  thread-safe
/// Throws:   c10::ValueError if the input is not a JPEG, truncated or corrupt; the message starts with `where`
Bytes jpeg_with_restarts(ByteSpan jpeg, std::string_view where = "image");

}  // namespace bellows::io
