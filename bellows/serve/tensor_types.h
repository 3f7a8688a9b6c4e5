#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace bellows::serve {

/// The dtype of BYTES tensors in a TensorSpec. libtorch has no dtype for them.
inline constexpr c10::ScalarType bytes_dtype = c10::ScalarType::Undefined;

/// Returns the protocol's name of a dtype, such as "FP32", or "" if the protocol has no such dtype.
std::string_view type_name(c10::ScalarType dtype);

/// Returns the dtype with this name in the protocol, without a prefix.
std::optional<c10::ScalarType> type_named(std::string_view name);

/// Returns the name of a dtype in configurations, such as "TYPE_FP32", and "TYPE_STRING" for BYTES.
std::string config_type_name(c10::ScalarType dtype);

/// Returns sizes as text, such as "[-1, 8]".
std::string shape_text(std::span<const int64_t> sizes);

/// Returns the number of elements, or nothing if a size is negative or the product is larger than 2^63 - 1.
std::optional<int64_t> element_count(std::span<const int64_t> sizes);

}  // namespace bellows::serve
