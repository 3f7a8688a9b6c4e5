#include "bellows/serve/tensor_types.h"

#include <algorithm>
#include <utility>

namespace bellows::serve {

namespace {

using c10::ScalarType;

constexpr std::pair<std::string_view, ScalarType> type_names[] = {
    {"BOOL", ScalarType::Bool},     {"UINT8", ScalarType::Byte},    {"UINT16", ScalarType::UInt16},
    {"UINT32", ScalarType::UInt32}, {"UINT64", ScalarType::UInt64}, {"INT8", ScalarType::Char},
    {"INT16", ScalarType::Short},   {"INT32", ScalarType::Int},     {"INT64", ScalarType::Long},
    {"FP16", ScalarType::Half},     {"FP32", ScalarType::Float},    {"FP64", ScalarType::Double},
    {"BF16", ScalarType::BFloat16}, {"BYTES", bytes_dtype}};

}  // namespace

std::string_view type_name(ScalarType dtype) {
  const auto* found = std::ranges::find(type_names, dtype, &std::pair<std::string_view, ScalarType>::second);
  return found == std::end(type_names) ? "" : found->first;
}

std::optional<ScalarType> type_named(std::string_view name) {
  const auto* found = std::ranges::find(type_names, name, &std::pair<std::string_view, ScalarType>::first);
  if (found == std::end(type_names)) return std::nullopt;
  return found->second;
}

std::string config_type_name(ScalarType dtype) {
  return dtype == bytes_dtype ? "TYPE_STRING" : "TYPE_" + std::string(type_name(dtype));
}

std::string shape_text(std::span<const int64_t> sizes) {
  std::string text = "[";
  for (const int64_t size : sizes) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

std::optional<int64_t> element_count(std::span<const int64_t> sizes) {
  // A size of 0 must not hide the overflow of the other sizes, because libtorch computes strides from them.
  int64_t count = 1, nonzero = 1;
  for (const int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(nonzero, std::max<int64_t>(size, 1), &nonzero)) return std::nullopt;
    count *= size == 0 ? 0 : 1;
  }
  return count == 0 ? 0 : nonzero;
}

}  // namespace bellows::serve
