#include "bellows/data/convert/compare.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "bellows/core/seed.h"
#include "bellows/data/convert/recode.h"
#include "bellows/io/crc32.h"
#include "bellows/io/image.h"
#include "bellows/io/json_impl.h"

namespace bellows::data {

namespace {

template <class T>
double element_as_double(const Field& field, size_t index) {
  T value;
  std::memcpy(&value, field.bytes.data() + index * sizeof(T), sizeof(T));
  return static_cast<double>(value);
}

/// One value of an array; nothing for types without an order.
std::optional<double> element(const Field& field, size_t index) {
  using enum c10::ScalarType;
  switch (field.dtype) {
    case Byte:
    case Bool:
      return element_as_double<uint8_t>(field, index);
    case Char:
      return element_as_double<int8_t>(field, index);
    case Short:
      return element_as_double<int16_t>(field, index);
    case UInt16:
      return element_as_double<uint16_t>(field, index);
    case Int:
      return element_as_double<int32_t>(field, index);
    case UInt32:
      return element_as_double<uint32_t>(field, index);
    case Long:
      return element_as_double<int64_t>(field, index);
    case UInt64:
      return element_as_double<uint64_t>(field, index);
    case Half:
      return element_as_double<c10::Half>(field, index);
    case BFloat16:
      return element_as_double<c10::BFloat16>(field, index);
    case Float:
      return element_as_double<float>(field, index);
    case Double:
      return element_as_double<double>(field, index);
    default:
      return std::nullopt;
  }
}

size_t element_count(const Field& field) {
  return field.bytes.size() / c10::elementSize(field.dtype);
}

bool same_number(double a, double b) {
  return a == b || (a != a && b != b);
}

/// Arrays of equal values, whatever their types.
bool same_values(const Field& a, const Field& b) {
  if (a.dtype == b.dtype) return std::ranges::equal(a.bytes, b.bytes);
  if (element_count(a) != element_count(b)) return false;
  for (size_t i = 0; i < element_count(a); ++i) {
    const auto x = element(a, i), y = element(b, i);
    if (!x || !y || !same_number(*x, *y)) return false;
  }
  return true;
}

/// The number that a text or an array of one value is.
std::optional<double> single_number(const Field& field) {
  if (field.is_array) return element_count(field) == 1 ? element(field, 0) : std::nullopt;
  if (field.bytes.empty() || field.bytes.size() > 64) return std::nullopt;
  const std::string text(io::as_text(field.bytes));
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  while (*end == ' ' || *end == '\n' || *end == '\r' || *end == '\t') ++end;
  if (end == text.c_str() || *end != '\0') return std::nullopt;
  return value;
}

bool same_json(const Field& a, const Field& b) {
  constexpr int deepest = 256;  // as JSON Lines may be
  const auto x = io::parse_shallow_json(io::as_text(a.bytes), "compare", deepest);
  return !x.is_discarded() && x == io::parse_shallow_json(io::as_text(b.bytes), "compare", deepest);
}

std::pair<int64_t, int64_t> picture_size(const Field& field) {
  if (field.is_array)
    return field.sizes.size() == 3 ? std::pair(field.sizes[0], field.sizes[1]) : std::pair<int64_t, int64_t>(-1, -1);
  const io::ImageInfo info = io::image_info(field.bytes, "picture");
  return {info.height, info.width};
}

bool same_field(const Field& a, const Field& b, bool picture) {
  const bool same_bytes = std::ranges::equal(a.bytes, b.bytes);
  if (a.is_array == b.is_array && (a.is_array ? same_values(a, b) : same_bytes)) return true;
  if (a.is_array && !b.is_array && io::as_text(b.bytes).starts_with("\x93NUMPY"))
    return io::as_text(b.bytes).ends_with(io::as_text(a.bytes));
  if (picture) return picture_size(a) == picture_size(b);
  const auto x = single_number(a), y = single_number(b);
  if (x && y) return same_number(*x, *y);
  return !a.is_array && !b.is_array && same_json(a, b);
}

/// Where a field of `written` went.
const Field* counterpart(const Field& field, const Field* picture, const Sample& read) {
  if (const Field* same = read.find(field.name)) return same;
  if (&field == picture) {
    if (const Field* other = picture_of(read)) return other;
    if (const Field* other = read.find("data")) return other;
  }
  if (field.name == "cls") return read.find("label");
  if (field.name == "label" && read.find("cls")) return read.find("cls");
  return read.find(std::string(field.name) + ".npy");
}

}  // namespace

uint64_t sample_digest(const Sample& sample, int64_t position, bool with_key) {
  uint64_t sum = 0;
  for (const Field& field : sample.fields) {
    uint64_t one = mix_seed(io::crc32c(io::as_bytes(field.name)), io::crc32c(field.bytes), field.bytes.size());
    if (field.is_array) {
      one = mix_seed(one, static_cast<uint64_t>(field.dtype) + 1);
      for (const int64_t size : field.sizes) one = mix_seed(one, static_cast<uint64_t>(size));
    }
    sum += one;
  }
  return mix_seed(sum, static_cast<uint64_t>(position), with_key ? io::crc32c(io::as_bytes(sample.key)) : 0);
}

std::string difference(const Sample& written, const Sample& read) {
  const Field* picture = picture_of(written);
  for (const Field& field : written.fields) {
    const Field* other = counterpart(field, picture, read);
    if (!other) return c10::str("field ", io::printable(field.name), " is missing");
    if (!same_field(field, *other, &field == picture))
      return c10::str("field ", io::printable(field.name), " has other content");
  }
  return "";
}

}  // namespace bellows::data
