#include "bellows/io/images/image.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/io/images/image_codecs.h"

namespace bellows::io {

namespace {

/// The image as [H, W, C], dense.
at::Tensor dense_image(const char* function, const at::Tensor& image, std::initializer_list<int64_t> channels) {
  TORCH_CHECK_VALUE(
      image.defined() && image.scalar_type() == c10::kByte && image.is_cpu() && (image.dim() == 2 || image.dim() == 3),
      function, ": expected a uint8 tensor [H, W] or [H, W, C] on the CPU, found ",
      image.defined() ? c10::str(image.toString(), " ", image.sizes()) : "an undefined one", ".");
  const at::Tensor result = (image.dim() == 2 ? image.unsqueeze(2) : image).contiguous();
  TORCH_CHECK_VALUE(std::find(channels.begin(), channels.end(), result.size(2)) != channels.end(), function,
                    ": expected ", c10::IntArrayRef(channels), " channels in the last dim, found ", result.size(2),
                    " in ", image.sizes(), ".");
  check_image_size(result.size(1), result.size(0), function);
  return result;
}

uint8_t* grown(std::vector<uint8_t>& memory, size_t bytes) {
  if (memory.size() < bytes) memory.resize(bytes);
  return memory.data();
}

void decode_checked(ByteSpan bytes, ColorMode mode, const ImageInfo& info, uint8_t* out, std::string_view where) {
  if (info.format == ImageFormat::png) return png_decode(bytes, mode, info, out, where);
  const auto size = static_cast<size_t>(info.bytes_as(mode));
  std::vector<uint8_t> inks;  // CMYK values before conversion to RGB
  const auto memory = [&](size_t needed) { return needed == size ? out : grown(inks, needed); };
  const ImagePart whole = jpeg_decode(bytes, {mode, {0, 0, info.height, info.width}}, memory, where);
  if (whole.pixels != out) std::copy_n(whole.pixels, size, out);
}

}  // namespace

void check_image_size(int64_t width, int64_t height, std::string_view where) {
  TORCH_CHECK_VALUE(width > 0 && height > 0, where, ": expected an image with pixels, found ", width, " × ", height,
                    ".");
  TORCH_CHECK_VALUE(width <= kMaxImagePixels / height, where, ": an image of ", width, " × ", height,
                    " pixels is too large. The limit is ", kMaxImagePixels, ".");
}

void check_part(const PartOptions& options, int64_t width, int64_t height, std::string_view where) {
  const ImageRegion& r = options.region;
  const bool within = r.y >= 0 && r.height > 0 && r.height <= height && r.y <= height - r.height && r.x >= 0 &&
                      r.width > 0 && r.width <= width && r.x <= width - r.width;
  TORCH_CHECK_VALUE(within, where, ": expected a part of an image of ", height, " rows and ", width,
                    " columns, found rows from ", r.y, " (", r.height, ") and columns from ", r.x, " (", r.width, ").");
  const int64_t shrink = options.shrink;
  TORCH_CHECK_VALUE(shrink == 1 || shrink == 2 || shrink == 4 || shrink == 8, where,
                    ": expected to shrink by 1, 2, 4 or 8, found ", shrink, ".");
}

ImageInfo image_info(ByteSpan bytes, std::string_view where) {
  const std::string_view text = as_text(bytes);
  if (text.starts_with("\x89PNG")) return png_info(bytes, where);
  TORCH_CHECK_VALUE(text.starts_with("\xff\xd8"), where, ": expected a PNG or JPEG image, found ",
                    describe_content(bytes), ".");
  return jpeg_info(bytes, where);
}

at::Tensor decode_image(ByteSpan bytes, ColorMode mode, std::string_view where) {
  const ImageInfo info = image_info(bytes, where);
  const at::Tensor image =
      at::empty({info.height, info.width, info.channels_as(mode)}, at::TensorOptions().dtype(c10::kByte));
  decode_checked(bytes, mode, info, image.data_ptr<uint8_t>(), where);
  return image;
}

ImageInfo decode_image_into(ByteSpan bytes, ColorMode mode, std::span<uint8_t> out, std::string_view where) {
  const ImageInfo info = image_info(bytes, where);
  TORCH_CHECK_VALUE(static_cast<int64_t>(out.size()) >= info.bytes_as(mode), where, ": an image of ", info.width, " × ",
                    info.height, " × ", info.channels_as(mode), " needs ", info.bytes_as(mode),
                    " bytes, but the buffer has only ", out.size(), ".");
  decode_checked(bytes, mode, info, out.data(), where);
  return info;
}

ImagePart decode_image_part(ByteSpan bytes, const PartOptions& options, std::vector<uint8_t>& memory,
                            std::string_view where) {
  if (as_text(bytes).starts_with("\xff\xd8"))
    return jpeg_decode(
        bytes, options, [&](size_t needed) { return grown(memory, needed); }, where);
  const ImageInfo info = image_info(bytes, where);
  check_part(options, info.width, info.height, where);
  uint8_t* out = grown(memory, static_cast<size_t>(info.bytes_as(options.mode)));
  png_decode(bytes, options.mode, info, out, where);
  const int64_t channels = info.channels_as(options.mode), stride = info.width * channels;
  return {out + options.region.y * stride + options.region.x * channels, stride, channels, options.region};
}

Bytes encode_png(const at::Tensor& image, int level) {
  TORCH_CHECK_VALUE(level >= 0 && level <= 9, "encode_png: expected a level from 0 to 9, found ", level, ".");
  const at::Tensor dense = dense_image("encode_png", image, {1, 2, 3, 4});
  return png_encode(dense.const_data_ptr<uint8_t>(), dense.size(0), dense.size(1), dense.size(2), level);
}

Bytes encode_jpeg(const at::Tensor& image, int quality) {
  TORCH_CHECK_VALUE(quality >= 1 && quality <= 100, "encode_jpeg: expected a quality from 1 to 100, found ", quality,
                    ".");
  const at::Tensor dense = dense_image("encode_jpeg", image, {1, 3});
  TORCH_CHECK_VALUE(dense.size(0) <= 65500 && dense.size(1) <= 65500,
                    "encode_jpeg: JPEG stores at most 65500 × 65500 pixels, found ", image.sizes(), ".");
  return jpeg_encode(dense.const_data_ptr<uint8_t>(), dense.size(0), dense.size(1), dense.size(2), quality);
}

}  // namespace bellows::io
