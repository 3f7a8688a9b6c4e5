#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>

#include "bellows/data/formats/example_arrays.h"
#include "bellows/io/bytes.h"

namespace bellows::data {

namespace {

using c10::ScalarType;

struct NamedType {
  std::string_view name;
  ScalarType dtype;
};

constexpr std::array named_types{NamedType{"uint8", ScalarType::Byte},
                                 NamedType{"int8", ScalarType::Char},
                                 NamedType{"int16", ScalarType::Short},
                                 NamedType{"int32", ScalarType::Int},
                                 NamedType{"int64", ScalarType::Long},
                                 NamedType{"uint16", ScalarType::UInt16},
                                 NamedType{"uint32", ScalarType::UInt32},
                                 NamedType{"uint64", ScalarType::UInt64},
                                 NamedType{"bool", ScalarType::Bool},
                                 NamedType{"float16", ScalarType::Half},
                                 NamedType{"bfloat16", ScalarType::BFloat16},
                                 NamedType{"float32", ScalarType::Float},
                                 NamedType{"float64", ScalarType::Double},
                                 NamedType{"complex64", ScalarType::ComplexFloat},
                                 NamedType{"complex128", ScalarType::ComplexDouble}};

/// Calls `visit` with a zero of the type. False for other types.
template <class Visit>
bool with_integer(ScalarType dtype, const Visit& visit) {
  switch (dtype) {
    case ScalarType::Byte:
      visit(uint8_t{});
      return true;
    case ScalarType::Char:
      visit(int8_t{});
      return true;
    case ScalarType::Short:
      visit(int16_t{});
      return true;
    case ScalarType::Int:
      visit(int32_t{});
      return true;
    case ScalarType::Long:
      visit(int64_t{});
      return true;
    case ScalarType::UInt16:
      visit(uint16_t{});
      return true;
    case ScalarType::UInt32:
      visit(uint32_t{});
      return true;
    case ScalarType::Bool:
      visit(bool{});
      return true;
    default:
      return false;
  }
}

template <class T>
T load_element(const std::byte* at) {
  if constexpr (std::is_same_v<T, bool>) {
    return *at != std::byte{0};
  } else {
    T value{};
    std::memcpy(&value, at, sizeof(T));
    return value;
  }
}

/// A size, and the product with those before; false on overflow.
bool parse_size(std::string_view digits, int64_t& size, size_t& values) {
  const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
  return error == std::errc() && rest == digits.data() + digits.size() && size >= 0 &&
         !__builtin_mul_overflow(values, static_cast<size_t>(size), &values);
}

}  // namespace

ExampleStore example_store(ScalarType dtype) {
  if (dtype == ScalarType::Float) return ExampleStore::floats;
  // A picture's bytes as int64 would be half as large again, and slow to read.
  return is_widened(dtype) && dtype != ScalarType::Byte ? ExampleStore::int64s : ExampleStore::bytes;
}

bool is_widened(ScalarType dtype) {
  return with_integer(dtype, [](auto) {});
}

ExampleArray parse_example_array(std::string_view note, std::vector<int64_t>& sizes) {
  const auto fail = [&] {
    TORCH_CHECK_VALUE(false, "feature \"", example_arrays_feature, "\": expected DTYPE[SIZES] NAME, found ",
                      io::printable(note), ".");
  };
  ExampleArray array;
  const size_t open = note.find('['), close = note.find("] ");
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) fail();
  const auto type = std::ranges::find(named_types, note.substr(0, open), &NamedType::name);
  if (type == named_types.end()) fail();
  array.dtype = type->dtype;
  array.name = note.substr(close + 2);
  array.first_size = sizes.size();
  std::string_view list = note.substr(open + 1, close - open - 1);
  for (bool more = !list.empty(); more; ++array.rank) {
    const std::string_view digits = list.substr(0, list.find(','));
    if (!parse_size(digits, sizes.emplace_back(), array.values)) fail();
    more = digits.size() < list.size();
    list.remove_prefix(more ? digits.size() + 1 : list.size());
  }
  return array;
}

std::optional<std::string> format_example_array(const Field& array, std::string_view name) {
  const bool is_list = array.sizes.empty() || (array.sizes.size() == 1 && array.sizes[0] != 1);
  if (is_list && (array.dtype == ScalarType::Long || array.dtype == ScalarType::Float)) return {};
  const auto type = std::ranges::find(named_types, array.dtype, &NamedType::dtype);
  TORCH_CHECK_VALUE(type != named_types.end(), "arrays of ", c10::toString(array.dtype),
                    " cannot be written; convert them to a common type.");
  std::string sizes;
  for (const int64_t size : array.sizes) sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
  return c10::str(type->name, "[", sizes, "] ", name);
}

std::vector<int64_t> widen_integers(const Field& array) {
  std::vector<int64_t> values;
  with_integer(array.dtype, [&](auto zero) {
    values.reserve(array.bytes.size() / sizeof(zero));
    for (size_t i = 0; i < array.bytes.size(); i += sizeof(zero))
      values.push_back(load_element<decltype(zero)>(array.bytes.data() + i));
  });
  return values;
}

void narrow_integers(std::span<const std::byte> values, ScalarType dtype, std::byte* out) {
  with_integer(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < values.size(); i += sizeof(int64_t), out += sizeof(T)) {
      const auto wide = load_element<int64_t>(values.data() + i);
      const auto value = static_cast<T>(wide);
      TORCH_CHECK_VALUE(static_cast<int64_t>(value) == wide, "expected numbers that fit ", c10::toString(dtype),
                        ", found ", wide, ".");
      std::memcpy(out, &value, sizeof(T));
    }
  });
}

}  // namespace bellows::data
