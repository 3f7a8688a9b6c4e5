#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace bellows::io {

/// Returns the shortest text that parses to `value`, in the format of Python's repr(float): "0.1", "1.0", "1e-05",
/// "nan".
std::string float_text(double value);

/// Parses an integer, which consists of an optional sign and digits. Returns nothing for other texts, and for values
/// out of range.
std::optional<int64_t> parse_int(std::string_view text);
/// Like parse_int(), but accepts only values of at least 0.
std::optional<uint64_t> parse_uint(std::string_view text);

/// Parses a number, including "nan" and "inf". Returns nothing if other characters follow the number. Values that are
/// too large for a double become infinite, as in Python.
std::optional<double> parse_float(std::string_view text);

/// True if the text is well-formed UTF-8. Overlong forms, surrogates and code points above U+10FFFF are not
/// well-formed.
bool is_utf8(std::string_view text);

}  // namespace bellows::io
