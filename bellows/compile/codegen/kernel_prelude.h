#pragma once

#include <string_view>

namespace bellows::compile_detail {

/// Returns the beginning of each generated source: types, conversions, and functions on individual elements.
std::string_view kernel_prelude();

}  // namespace bellows::compile_detail
