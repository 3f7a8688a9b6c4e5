#pragma once

#include <string_view>

namespace bellows::compile_detail {

/// What stands before the kernels in a generated source: types, conversions, and the functions of one place.
std::string_view kernel_prelude();

}  // namespace bellows::compile_detail
