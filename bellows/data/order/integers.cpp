#include "bellows/data/order/integers.h"

#include <cstring>

namespace bellows::data {

namespace {

/// Calls `visit` with a value of the field's integer type; returns false for other types.
template <class Visit>
bool visit_integer_type(const Field& field, const Visit& visit) {
  switch (field.is_array ? field.dtype : c10::ScalarType::Byte) {
    case c10::ScalarType::Byte:
      return visit(uint8_t{}), true;
    case c10::ScalarType::Char:
      return visit(int8_t{}), true;
    case c10::ScalarType::Short:
      return visit(int16_t{}), true;
    case c10::ScalarType::UInt16:
      return visit(uint16_t{}), true;
    case c10::ScalarType::Int:
      return visit(int32_t{}), true;
    case c10::ScalarType::UInt32:
      return visit(uint32_t{}), true;
    case c10::ScalarType::Long:
      return visit(int64_t{}), true;
    default:
      return false;
  }
}

}  // namespace

int64_t integer_count(const Field& field) {
  int64_t count = -1;
  visit_integer_type(field, [&](auto value) { count = static_cast<int64_t>(field.bytes.size() / sizeof(value)); });
  return count;
}

void copy_integers(const Field& field, int64_t begin, int64_t count, int64_t* out) {
  visit_integer_type(field, [&](auto value) {
    const std::byte* from = field.bytes.data() + static_cast<size_t>(begin) * sizeof(value);
    for (int64_t i = 0; i < count; ++i, from += sizeof(value)) {
      std::memcpy(&value, from, sizeof(value));  // fields may be unaligned
      out[i] = static_cast<int64_t>(value);
    }
  });
}

}  // namespace bellows::data
