#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// The channels of a decoded image.
/// - gray: 1
/// - rgb: 3
/// - keep: as in the file, that is, 1 (gray), 2 (gray, alpha), 3 (RGB) or 4 (RGB, alpha); palette and CMYK images
///   become RGB
///
/// The modes gray and rgb discard an alpha channel without blending, like Pillow's convert().
enum class ColorMode { gray, rgb, keep };

enum class ImageFormat { png, jpeg };

/// The properties in the header of an image.
struct ImageInfo {
  ImageFormat format = ImageFormat::png;
  int64_t width = 0;
  int64_t height = 0;
  int64_t channels = 0;  ///< number of channels with ColorMode::keep
  int64_t channels_as(ColorMode mode) const {
    return mode == ColorMode::keep ? channels : mode == ColorMode::rgb ? 3 : 1;
  }
  int64_t bytes_as(ColorMode mode) const { return width * height * channels_as(mode); }
};

/// The maximum number of pixels. Larger images are rejected before memory is allocated.
inline constexpr int64_t kMaxImagePixels = int64_t{1} << 28;

/// Reads only the header of an image.
/// Params: where – name of the image for error messages
/// Throws: c10::ValueError if the image is neither PNG nor JPEG, has a damaged header, or is too large
ImageInfo image_info(ByteSpan bytes, std::string_view where = "image");

/// Decodes a PNG or JPEG image. The format is detected from the content.
/// Shapes:   uint8 [height, width, channels], contiguous
/// Numerics: PNG images are bit-identical to Pillow's convert("RGB"); 16-bit samples lose their low byte. JPEG images
///           use libjpeg-turbo's accurate DCT and smooth upsampling, like Pillow (tests/io/image_test.cpp). The gray
///           value of a JPEG is its luma. EXIF rotation is not applied
/// Threads:  thread-safe
/// Throws:   c10::ValueError if the input is not an image, is truncated or corrupt, or is larger than kMaxImagePixels
///           (the message starts with `where`)
/// Ref:      torchvision.io.decode_image (which returns [C, H, W])
at::Tensor decode_image(ByteSpan bytes, ColorMode mode = ColorMode::rgb, std::string_view where = "image");

/// Decodes an image into the caller's memory, so that a loader can fill a batch without a copy.
/// Params: out – at least image_info(bytes).bytes_as(mode) bytes for rows without padding, channels last
/// Throws: c10::ValueError under the same conditions as decode_image(), or if `out` is too small
ImageInfo decode_image_into(ByteSpan bytes, ColorMode mode, std::span<uint8_t> out, std::string_view where = "image");

/// A rectangle of pixels.
struct ImageRegion {
  int64_t y = 0, x = 0, height = 0, width = 0;
  bool operator==(const ImageRegion&) const = default;
};

/// Options of decode_image_part().
struct PartOptions {
  ColorMode mode = ColorMode::rgb;
  ImageRegion region;  ///< part of the image to decode
  /// 1, 2, 4 or 8: the factor by which JPEGs are shrunk in both directions. The inverse DCT shrinks them at low cost.
  /// PNGs are not shrunk.
  int64_t shrink = 1;
  /// JPEG only: use a less precise inverse DCT and, for shrunk images, repeat chroma values instead of interpolating
  /// them.
  bool fast = false;
};

/// A part of an image, in the caller's memory.
struct ImagePart {
  const uint8_t* pixels = nullptr;
  int64_t row_stride = 0;  ///< bytes from one row to the next
  int64_t channels = 0;
  ImageRegion region;  ///< in pixels of the shrunk image: options.region / shrink, rounded outward
};

/// Decodes only the required part of an image. A JPEG is decoded only up to the region's last row, and only the blocks
/// in and next to the region are decoded. If restart markers divide the JPEG's rows evenly (see jpeg_with_restarts()),
/// the rest of the compressed data is not read. PNGs and progressive or CMYK JPEGs are decoded completely.
/// Params:   memory – grows if necessary and never shrinks; `pixels` points into it
/// Numerics: if `shrink` is 1 and `fast` is false, bit-identical to decode_image() (tests/io/image_part_test.cpp)
/// Threads:  thread-safe
/// Throws:   c10::ValueError under the same conditions as decode_image(), including truncated files; if the region is
///           empty or not within the image; if `shrink` is not 1, 2, 4 or 8. Damage after the region, or in skipped
///           parts beside and above it, is not detected
ImagePart decode_image_part(ByteSpan bytes, const PartOptions& options, std::vector<uint8_t>& memory,
                            std::string_view where = "image");

/// Encodes an image as PNG.
/// Params: image – uint8 [H, W] or [H, W, C] on the CPU with 1 (gray), 2 (gray, alpha), 3 (RGB) or 4 (RGB, alpha)
///         channels
///         level – zlib's compression level, 0 to 9
/// Throws: c10::ValueError if the shape, dtype or device of the image is not as above
Bytes encode_png(const at::Tensor& image, int level = 6);

/// Encodes an image as JPEG.
/// Params: image – uint8 [H, W] or [H, W, C] on the CPU with 1 (gray) or 3 (RGB) channels
///         quality – 1 to 100; chroma is stored at half resolution (4:2:0)
/// Throws: c10::ValueError if the shape, dtype or device of the image is not as above, or if the quality is out of
///         range
Bytes encode_jpeg(const at::Tensor& image, int quality = 90);

/// Re-encodes a JPEG with restart markers in each row of blocks, so that decode_image_part() can jump to the required
/// blocks.
/// Numerics: the coefficients do not change, so all decoders return the same pixels. A progressive JPEG becomes a
///           sequential one, which decodes faster. EXIF, ICC and other markers are kept
/// Returns:  the new JPEG, or a copy of `jpeg` if it already has such markers or if they would not help (CMYK,
///           arithmetic coding, progressive JPEGs with missing bits)
/// Cost:     decodes and encodes the entropy-coded data. The size changes by a few percent
/// Threads:  thread-safe
/// Throws:   c10::ValueError if the input is not a JPEG, or is truncated or corrupt (the message starts with `where`)
Bytes jpeg_with_restarts(ByteSpan jpeg, std::string_view where = "image");

}  // namespace bellows::io
