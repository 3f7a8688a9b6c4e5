#include "bellows/data/convert/recode.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/data/images/bad_image.h"
#include "bellows/data/picture.h"
#include "bellows/io/images/image.h"

namespace bellows::data {

namespace {

using Coding = RecodeOptions::Coding;

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// A dense copy [H, W, C], without the alpha channel if `channels` is one less.
at::Tensor dense_copy(const ImageView& image, int64_t channels) {
  at::Tensor copy = at::empty({image.height, image.width, channels}, at::TensorOptions().dtype(c10::kByte));
  auto* out = copy.data_ptr<uint8_t>();
  if (channels == image.channels) {
    image.copy_to(out, image.width * channels);
    return copy;
  }
  for (int64_t y = 0; y < image.height; ++y) {
    for (int64_t x = 0; x < image.width; ++x, out += channels) std::copy_n(image.at(y, x), channels, out);
  }
  return copy;
}

}  // namespace

RecodeOptions parse_recode(const std::string& resize, const std::string& encode) {
  RecodeOptions options;
  if (!resize.empty()) {
    const size_t cross = resize.find('x');
    const auto first = whole_number(std::string_view(resize).substr(0, cross));
    const auto second = cross == std::string::npos ? first : whole_number(std::string_view(resize).substr(cross + 1));
    TORCH_CHECK_VALUE(first && second && *first > 0 && *second > 0,
                      "`resize`: expected the shorter side, such as 256, or height x width, such as 224x224, got \"",
                      resize, "\".");
    (cross == std::string::npos ? options.shorter : options.height) = *first;
    if (cross != std::string::npos) options.width = *second;
  }
  const size_t colon = encode.find(':');
  const std::string name = encode.substr(0, colon);
  if (name == "jpg" || name == "jpeg") {
    options.coding = Coding::jpg;
    const auto quality = colon == std::string::npos ? 0 : whole_number(std::string_view(encode).substr(colon + 1));
    TORCH_CHECK_VALUE(quality && *quality <= 100 && (*quality >= 1 || colon == std::string::npos),
                      "`encode`: expected jpg:QUALITY with a quality from 1 to 100, got \"", encode, "\".");
    options.quality = *quality;
  } else if (encode == "png" || encode == "raw") {
    options.coding = encode == "png" ? Coding::png : Coding::raw;
  } else if (encode == "restart") {
    options.coding = Coding::restart;
  } else {
    TORCH_CHECK_VALUE(encode.empty() || encode == "keep",
                      "`encode`: expected jpg, jpg:QUALITY, png, raw, restart or keep, got \"", encode, "\".",
                      did_you_mean(encode, {"jpg", "jpeg", "png", "raw", "restart", "keep"}));
  }
  return options;
}

Recoder::Recoder(RecodeOptions options) : options_(options) {
  TORCH_CHECK_VALUE(options.quality >= 0 && options.quality <= 100,
                    "convert: expected a quality from 1 to 100, or 0 for the default, got ", options.quality, ".");
  if (options.height > 0 || options.width > 0) {
    scale_ = resize(options.height, options.width);
  } else if (options.shorter > 0) {
    scale_ = resize_shorter(options.shorter);
  }
}

bool Recoder::wants_scaling(const ImageView& image) const {
  if (options_.height > 0) return image.height != options_.height || image.width != options_.width;
  return options_.shorter > 0 && std::min(image.height, image.width) > options_.shorter;
}

void Recoder::run(Sample& sample, Work& work) const {
  if (!options_.active()) return;
  const Field* picture = find_picture(sample);
  TORCH_CHECK_VALUE(picture, "convert: ", sample.where(), " has no image to resize or encode.");
  try {
    Field& field = sample.fields[static_cast<size_t>(picture - sample.fields.data())];
    ImageView image;
    Coding found = Coding::raw;
    if (field.is_array) {
      const auto* pixels = reinterpret_cast<const uint8_t*>(field.bytes.data());
      image = {pixels, field.sizes[0], field.sizes[1], field.sizes[2], field.sizes[1] * field.sizes[2], field.sizes[2]};
    } else {
      const io::ImageInfo info = io::image_info(field.bytes, "picture");
      found = info.format == io::ImageFormat::png ? Coding::png : Coding::jpg;
      work.decoded.resize(static_cast<size_t>(info.bytes_as(io::ColorMode::keep)));
      io::decode_image_into(field.bytes, io::ColorMode::keep, work.decoded, "picture");
      image = {work.decoded.data(), info.height, info.width, info.channels, info.width * info.channels, info.channels};
    }
    const bool restarts = options_.coding == Coding::restart;
    const Coding wanted = options_.coding == Coding::keep || restarts ? found : options_.coding;
    const bool scaling = wants_scaling(image);
    if (scaling || wanted != found || (wanted == Coding::jpg && options_.quality != 0)) {
      RandomStream unused(0);
      if (scaling) image = scale_.run(image, work.scratch, unused);
      encode(image, wanted, field, work);
    }
    if (restarts && wanted == Coding::jpg) field.bytes = work.bytes = io::jpeg_with_restarts(field.bytes, "picture");
  } catch (const std::exception& error) {
    throw_bad_image(ImageStep::convert, sample, picture, error);
  }
}

void Recoder::encode(const ImageView& image, Coding coding, Field& field, Work& work) const {
  if (coding == Coding::raw) {
    work.sizes = {image.height, image.width, image.channels};
    work.bytes.resize(static_cast<size_t>(image.height * image.width * image.channels));
    image.copy_to(reinterpret_cast<uint8_t*>(work.bytes.data()), image.width * image.channels);
    field.name = "image";
    field.sizes = work.sizes;
  } else {
    const bool jpg = coding == Coding::jpg, alpha = image.channels == 2 || image.channels == 4;
    const at::Tensor pixels = dense_copy(image, image.channels - (jpg && alpha ? 1 : 0));
    work.bytes = jpg ? io::encode_jpeg(pixels, options_.quality == 0 ? 90 : static_cast<int>(options_.quality))
                     : io::encode_png(pixels);
    field.name = jpg ? "jpg" : "png";
    field.sizes = {};
  }
  field.is_array = coding == Coding::raw;
  field.dtype = c10::ScalarType::Byte;
  field.bytes = work.bytes;
  field.offset = 0;
}

}  // namespace bellows::data
