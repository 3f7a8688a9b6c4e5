#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

namespace bellows::compile_detail {

/// Returns the number as text with a mark around it, so that MarkedText finds it. 0 and 1 are not marked, because code
/// for other numbers cannot replace code for them.
std::string marked_size(int64_t size);
/// The same for a finite floating-point constant.
/// Params: literal – the constant as a C++ literal, see literal()
std::string marked_constant(const std::string& literal, c10::ScalarType type);

/// Generated code in which sizes, strides, offsets and floating-point constants are separate from the remaining text.
/// Functions with the same skeleton compute the same, but for different sizes.
struct MarkedText {
  std::string skeleton{};  ///< the text with one placeholder for each number
  std::vector<int64_t> sizes{};
  std::vector<std::string> constants{};  ///< as literals

  static MarkedText of(const std::string& text);
  /// Returns code in which the numbers are literals, except those that vary. These are read from the arrays `sizes` and
  /// `constants`, in order.
  /// Params: size_varies, constant_varies – one flag per number; empty if none varies
  std::string code(const std::vector<bool>& size_varies = {}, const std::vector<bool>& constant_varies = {}) const;
};

}  // namespace bellows::compile_detail
