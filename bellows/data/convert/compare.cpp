#include "bellows/data/convert/compare.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "bellows/core/seed.h"
#include "bellows/data/formats/table_files.h"
#include "bellows/data/label.h"
#include "bellows/data/picture.h"
#include "bellows/io/crc32.h"
#include "bellows/io/images/image.h"
#include "bellows/io/tables/json_impl.h"
#include "bellows/io/tensors/npy.h"

namespace bellows::data {

namespace {

/// Represents every 64-bit integer and every double exactly.
using Number = long double;
static_assert(std::numeric_limits<Number>::digits >= 64);

template <class T>
Number element_as(const Field& field, size_t index) {
  T value;
  std::memcpy(&value, field.bytes.data() + index * sizeof(T), sizeof(T));
  return static_cast<Number>(value);
}

/// One value of an array; nothing for types without an order.
std::optional<Number> element(const Field& field, size_t index) {
  using enum c10::ScalarType;
  switch (field.dtype) {
    case Byte:
    case Bool:
      return element_as<uint8_t>(field, index);
    case Char:
      return element_as<int8_t>(field, index);
    case Short:
      return element_as<int16_t>(field, index);
    case UInt16:
      return element_as<uint16_t>(field, index);
    case Int:
      return element_as<int32_t>(field, index);
    case UInt32:
      return element_as<uint32_t>(field, index);
    case Long:
      return element_as<int64_t>(field, index);
    case UInt64:
      return element_as<uint64_t>(field, index);
    case Half:
      return element_as<c10::Half>(field, index);
    case BFloat16:
      return element_as<c10::BFloat16>(field, index);
    case Float:
      return element_as<float>(field, index);
    case Double:
      return element_as<double>(field, index);
    default:
      return std::nullopt;
  }
}

size_t element_count(const Field& field) {
  return field.bytes.size() / c10::elementSize(field.dtype);
}

bool same_number(Number a, Number b) {
  return a == b || (a != a && b != b);
}

/// True if the arrays have equal values, regardless of their types.
bool same_values(const Field& a, const Field& b) {
  if (a.dtype == b.dtype) return std::ranges::equal(a.bytes, b.bytes);
  if (element_count(a) != element_count(b)) return false;
  for (size_t i = 0; i < element_count(a); ++i) {
    const auto x = element(a, i), y = element(b, i);
    if (!x || !y || !same_number(*x, *y)) return false;
  }
  return true;
}

/// The text of an array of one number; "" for other arrays.
std::string printed_number(const Field& array) {
  return element_count(array) == 1 ? number_text(array.dtype, array.bytes.data()) : "";
}

/// Compares a number with the text that it was or became. Another spelling is another text: "1.50", "+5", "1e3".
bool same_as_text(const Field& array, const Field& text) {
  const std::string printed = printed_number(array);
  if (printed.empty()) return false;
  if (text.name == "cls" || text.name == "json") return element(array, 0) == static_cast<Number>(parse_label(text, ""));
  return printed == io::as_text(text.bytes);
}

bool same_json(const Field& a, const Field& b) {
  constexpr int deepest = 256;  // the limit of JSON Lines
  const auto x = io::parse_shallow_json(io::as_text(a.bytes), "compare", deepest);
  return !x.is_discarded() && x == io::parse_shallow_json(io::as_text(b.bytes), "compare", deepest);
}

at::Tensor pixels_of(const Field& picture, io::ColorMode mode) {
  if (!picture.is_array) return io::decode_image(picture.bytes, mode, "picture");
  auto* pixels = const_cast<std::byte*>(picture.bytes.data());  // from_blob takes no const memory, but only reads it
  const at::Tensor image = at::from_blob(pixels, picture.sizes, at::TensorOptions().dtype(c10::kByte));
  const bool gray_to_rgb = mode == io::ColorMode::rgb && image.size(2) == 1;
  return gray_to_rgb ? image.expand({image.size(0), image.size(1), 3}).contiguous() : image;
}

io::ByteSpan bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// Compares images whose bytes differ.
bool same_picture(const Field& written, const Field& read, int jpeg_quality) {
  if (!read.is_array && io::image_info(read.bytes, "picture").format == io::ImageFormat::jpeg)
    return jpeg_quality > 0 &&
           std::ranges::equal(io::encode_jpeg(pixels_of(written, io::ColorMode::rgb), jpeg_quality), read.bytes);
  const at::Tensor a = pixels_of(written, io::ColorMode::keep), b = pixels_of(read, io::ColorMode::keep);
  return a.sizes() == b.sizes() && std::ranges::equal(bytes_of(a), bytes_of(b));
}

bool same_npy(const Field& array, const Field& file) {
  const io::NpyArray found = io::parse_npy(file.bytes, "array");
  return found.dtype == array.dtype && array.sizes == c10::IntArrayRef(found.shape) &&
         std::ranges::equal(array.bytes, found.bytes);
}

bool same_field(const Field& a, const Field& b, int jpeg_quality) {
  const bool same_bytes = std::ranges::equal(a.bytes, b.bytes);
  if (a.is_array == b.is_array && (a.is_array ? same_values(a, b) : same_bytes)) return true;
  if (a.is_array && !b.is_array && io::as_text(b.bytes).starts_with("\x93NUMPY")) return same_npy(a, b);
  if (is_picture(a)) return same_picture(a, b, jpeg_quality);
  if (a.is_array != b.is_array) return a.is_array ? same_as_text(a, b) : same_as_text(b, a);
  return !a.is_array && a.name == "json" && same_json(a, b);
}

/// The field that `field` of the written sample became.
const Field* counterpart(const Field& field, const Sample& read) {
  if (const Field* same = read.find(field.name)) return same;
  if (is_picture(field)) {
    if (const Field* other = find_picture(read)) return other;
    if (const Field* other = read.find("data")) return other;
  }
  if (field.name == "cls" || field.name == "json") return read.find("label");
  if (field.name == "label" && read.find("cls")) return read.find("cls");
  return read.find(std::string(field.name) + ".npy");
}

std::string shown_field(const Field& field) {
  if (!field.is_array) return "the text " + io::printable(io::as_text(field.bytes));
  const std::string number = printed_number(field);
  return number.empty() ? "an array" : "the number " + number;
}

std::string what_became_of(const Field& written, const Field& read) {
  if (written.is_array == read.is_array || is_picture(written)) return " has different content";
  return " was " + shown_field(written) + " and is now " + shown_field(read);
}

/// The digest of a field as an exact format restores it.
uint64_t field_digest(const OutputFormat& format, Field field) {
  int64_t label = 0;
  if (format.number_labels && !field.is_array && field.name == "cls") {
    label = parse_label(field, "");
    field = {.name = "label", .bytes = std::as_bytes(std::span(&label, 1)), .is_array = true, .dtype = c10::kLong};
  }
  uint64_t sum = mix_seed(io::crc32c(io::as_bytes(field.name)), io::crc32c(field.bytes), field.bytes.size());
  if (!field.is_array) return sum;
  sum = mix_seed(sum, static_cast<uint64_t>(field.dtype) + 1);
  for (const int64_t size : field.sizes) sum = mix_seed(sum, static_cast<uint64_t>(size));
  return sum;
}

}  // namespace

uint64_t sample_digest(const OutputFormat& format, const Sample& sample, int64_t position) {
  uint64_t sum = 0;
  if (format.exact) {
    for (const Field& field : sample.fields) sum += field_digest(format, field);
  }
  return mix_seed(sum, static_cast<uint64_t>(position), format.keeps_keys ? io::crc32c(io::as_bytes(sample.key)) : 0);
}

std::string difference(const Sample& written, const Sample& read, int jpeg_quality) {
  for (const Field& field : written.fields) {
    const Field* other = counterpart(field, read);
    if (!other) return c10::str("field ", io::printable(field.name), " is missing");
    if (!same_field(field, *other, jpeg_quality))
      return c10::str("field ", io::printable(field.name), what_became_of(field, *other));
  }
  return "";
}

}  // namespace bellows::data
