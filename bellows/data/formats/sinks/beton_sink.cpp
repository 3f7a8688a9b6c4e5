#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/core/seed.h"
#include "bellows/data/formats/beton_source.h"
#include "bellows/data/images/transform.h"
#include "bellows/data/label.h"
#include "bellows/data/picture.h"
#include "bellows/io/images/image.h"
#include "bellows/io/records/beton.h"
#include "bellows/system/write_state.h"

namespace bellows::data {

namespace {

/// Number of color channels in a JPEG's frame header; 0 if there is none. libjpeg-turbo converts one and three channels
/// to RGB, but not four, and FFCV has no other decoder.
int jpeg_components(io::ByteSpan bytes) {
  const auto byte = [&](size_t at) { return std::to_integer<unsigned>(bytes[at]); };
  for (size_t at = 2; at + 10 <= bytes.size() && byte(at) == 0xff;) {
    const unsigned marker = byte(at + 1);
    const bool frame = marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
    if (frame) return static_cast<int>(byte(at + 9));
    at += marker == 0xff ? 1 : 2 + (byte(at + 2) << 8 | byte(at + 3));
  }
  return 0;
}

bool is_float_number(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Double || dtype == c10::ScalarType::Float || dtype == c10::ScalarType::Half ||
         dtype == c10::ScalarType::BFloat16;
}

double float_value(const Field& field) {
  const auto load = [&](auto value) {
    std::memcpy(&value, field.bytes.data(), sizeof(value));
    return static_cast<double>(value);
  };
  if (field.dtype == c10::ScalarType::Double) return load(double());
  if (field.dtype == c10::ScalarType::Float) return load(float());
  return field.dtype == c10::ScalarType::Half ? load(c10::Half()) : load(c10::BFloat16());
}

int64_t int_value(const Field& field) {
  const bool is_signed = c10::isSignedType(field.dtype);
  uint64_t value = 0;
  for (size_t i = field.bytes.size(); i-- > 0;) value = value << 8 | std::to_integer<uint64_t>(field.bytes[i]);
  const size_t unused = 64 - 8 * field.bytes.size();
  if (is_signed) return static_cast<int64_t>(value << unused) >> unused;
  TORCH_CHECK_VALUE(value <= INT64_MAX, "expected a number below 2^63, found ", value, ".");
  return static_cast<int64_t>(value);
}

/// The conversion of one field of the samples.
struct BetonColumn {
  std::string from;  ///< the field's name; an image's name may differ between samples
  io::BetonField to;
};

BetonColumn beton_column(const Field& field) {
  BetonColumn column{std::string(field.name), {}};
  column.to.name = field.name;
  if (is_picture(field)) {
    column.to = {"image", io::BetonType::image};
  } else if (field.is_array && field.sizes.empty() && c10::isIntegralType(field.dtype, /*includeBool=*/true)) {
    column.to.type = io::BetonType::int64;
  } else if (field.is_array && field.sizes.empty() && is_float_number(field.dtype)) {
    column.to.type = io::BetonType::float64;
  } else if (field.is_array) {
    column.to.type = io::BetonType::array;
    column.to.dtype = field.dtype;
    column.to.sizes = field.sizes.vec();
  } else if (field.name == "cls") {
    column.to = {"label", io::BetonType::int64};
  } else {
    column.to.type = field.name == "json" ? io::BetonType::json : io::BetonType::bytes;
  }
  return column;
}

void check_beton_options(const BetonOptions& options) {
  TORCH_CHECK_VALUE(options.quality >= 1 && options.quality <= 100,
                    "beton_sink: expected a quality from 1 to 100, got ", options.quality, ".");
  TORCH_CHECK_VALUE(options.max_resolution >= 0 && options.smart_bytes >= 0,
                    "beton_sink: expected max_resolution and smart_bytes of at least 0, got ", options.max_resolution,
                    " and ", options.smart_bytes, ".");
  TORCH_CHECK_VALUE(options.jpg_probability >= 0 && options.jpg_probability <= 1,
                    "beton_sink: expected jpg_probability in [0, 1], got ", options.jpg_probability, ".");
}

class BetonSink final : public Sink {
 public:
  BetonSink(std::string path, const BetonOptions& options) : path_(std::move(path)), options_(options) {
    check_beton_options(options);
    // Check the path and the page size before the first sample is processed.
    io::BetonWriter(path_, {{"trial", io::BetonType::int64}}, options_.page_size);
  }

  void write(const Sample& sample) override {
    std::optional<std::string> refused;  // rejected by its content: nothing was written, and other samples may follow
    state_.run("beton_sink", [&] {
      try {
        add(sample);
      } catch (const c10::ValueError& error) {
        refused = user_message(error);
      }
    });
    TORCH_CHECK_VALUE(!refused, "beton_sink: ", sample.where(), ": ", *refused);
  }

  void close() override {
    state_.check("beton_sink");
    TORCH_CHECK_VALUE(writer_, "beton_sink: no sample was written to ", path_,
                      ", so the fields of the file are unknown.");
    state_.run("beton_sink", [&] { writer_->close(); });
  }

 private:
  void add(const Sample& sample) {
    if (!writer_) learn(sample);
    std::vector<io::BetonValue> values;
    numbers_.resize(columns_.size());
    taken_.clear();
    for (size_t i = 0; i < columns_.size(); ++i) values.push_back(value(sample, i));
    for (const Field& field : sample.fields) {
      TORCH_CHECK_VALUE(std::ranges::find(taken_, &field) != taken_.end(), "the sample has the field \"", field.name,
                        "\", which the first sample does not have, or has only once.");
    }
    writer_->add(values);
  }

  void learn(const Sample& sample) {
    columns_.clear();
    std::vector<io::BetonField> fields;
    for (const Field& field : sample.fields) {
      columns_.push_back(beton_column(field));
      fields.push_back(columns_.back().to);
    }
    writer_ = std::make_unique<io::BetonWriter>(path_, std::move(fields), options_.page_size);
  }

  const Field& field_of(const Sample& sample, const BetonColumn& column) const {
    for (const Field& field : sample.fields) {
      const bool image = column.to.type == io::BetonType::image;
      if (image ? is_picture(field) : field.name == column.from) return field;
    }
    TORCH_CHECK_VALUE(false, "the sample has no field \"", column.from, "\", which the first sample has.");
  }

  io::BetonValue value(const Sample& sample, size_t i) {
    const BetonColumn& column = columns_[i];
    const Field& field = field_of(sample, column);
    taken_.push_back(&field);
    TORCH_CHECK_VALUE(column.to.type == io::BetonType::image || beton_column(field).to == column.to, "\"", field.name,
                      "\" has a different type or size than in the first sample.");
    switch (column.to.type) {
      case io::BetonType::image:
        return image(field);
      case io::BetonType::float64:
        return number(i, std::bit_cast<uint64_t>(float_value(field)));
      case io::BetonType::int64:
        return number(i, static_cast<uint64_t>(field.is_array ? int_value(field) : parse_label(field, "label")));
      default:
        return {.bytes = field.bytes};
    }
  }

  io::BetonValue number(size_t i, uint64_t bits) {
    numbers_[i] = bits;
    return {.bytes = std::as_bytes(std::span(&numbers_[i], 1))};
  }

  bool as_jpeg(int64_t pixels) const {
    const auto sample = static_cast<uint64_t>(writer_->size());
    switch (options_.images) {
      case BetonImages::jpg:
        return true;
      case BetonImages::raw:
        return false;
      case BetonImages::smart:
        return 3 * pixels > options_.smart_bytes;
      case BetonImages::proportion:
        return RandomStream(mix_seed(options_.seed, sample)).uniform() < options_.jpg_probability;
    }
    return false;
  }

  io::BetonValue image(const Field& field) {
    if (!field.is_array) {
      const io::ImageInfo info = io::image_info(field.bytes);
      const bool fits = options_.max_resolution == 0 || std::max(info.height, info.width) <= options_.max_resolution;
      const int components = info.format == io::ImageFormat::jpeg ? jpeg_components(field.bytes) : 0;
      if (fits && (components == 1 || components == 3) && as_jpeg(info.height * info.width))
        return {.bytes = field.bytes, .is_jpeg = true, .height = info.height, .width = info.width};
    }
    pixels_ = scaled(field.is_array ? rgb_of(field) : io::decode_image(field.bytes));
    io::BetonValue value{.height = pixels_.size(0), .width = pixels_.size(1)};
    value.is_jpeg = as_jpeg(value.height * value.width);
    if (value.is_jpeg) encoded_ = io::encode_jpeg(pixels_, options_.quality);
    value.bytes = value.is_jpeg
                      ? io::ByteSpan(encoded_)
                      : io::ByteSpan(static_cast<const std::byte*>(pixels_.const_data_ptr()), pixels_.nbytes());
    return value;
  }

  static at::Tensor rgb_of(const Field& field) {
    const int64_t height = field.sizes[0], width = field.sizes[1], channels = field.sizes[2];
    TORCH_CHECK_VALUE(channels == 1 || channels == 3, "expected an image of 1 or 3 channels, got sizes ", field.sizes,
                      ".");
    const at::Tensor image = at::empty({height, width, 3}, at::TensorOptions().dtype(c10::kByte));
    auto* out = image.mutable_data_ptr<uint8_t>();
    const auto* in = reinterpret_cast<const uint8_t*>(field.bytes.data());
    if (channels == 3) {
      std::copy_n(in, field.bytes.size(), out);
    } else {
      for (int64_t i = 0; i < height * width; ++i, out += 3) std::fill_n(out, 3, in[i]);
    }
    return image;
  }

  /// Scales the longer side down to max_resolution, with FFCV's rounding.
  at::Tensor scaled(at::Tensor image) const {
    const int64_t height = image.size(0), width = image.size(1), longer = std::max(height, width);
    if (options_.max_resolution == 0 || longer <= options_.max_resolution) return image;
    const double ratio = static_cast<double>(options_.max_resolution) / static_cast<double>(longer);
    const auto side = [&](int64_t n) {
      return std::max<int64_t>(1, static_cast<int64_t>(ratio * static_cast<double>(n)));
    };
    Scratch scratch;
    RandomStream unused(0);
    const ImageView whole{image.const_data_ptr<uint8_t>(), height, width, 3, 3 * width, 3};
    const ImageView small = resize(side(height), side(width)).run(whole, scratch, unused);
    at::Tensor out = at::empty({small.height, small.width, 3}, at::TensorOptions().dtype(c10::kByte));
    small.copy_to(out.mutable_data_ptr<uint8_t>(), 3 * small.width);
    return out;
  }

  std::string path_;
  BetonOptions options_;
  WriteState state_;
  std::unique_ptr<io::BetonWriter> writer_;  // null before the first sample
  std::vector<BetonColumn> columns_;
  std::vector<const Field*> taken_;  // of the current sample
  // Memory that the values of one sample point to.
  std::vector<uint64_t> numbers_;
  at::Tensor pixels_;
  io::Bytes encoded_;
};

}  // namespace

std::unique_ptr<Sink> beton_sink(const std::string& path, const BetonOptions& options) {
  return std::make_unique<BetonSink>(path, options);
}

}  // namespace bellows::data
