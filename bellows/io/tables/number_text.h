#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace bellows::io {

/// The shortest text that reads back as `value`, laid out as Python's repr(float) does: "0.1", "1.0", "1e-05", "nan".
std::string float_text(double value);

/// The whole number that `text` is: digits behind an optional sign, nothing else. Nothing where it does not fit.
std::optional<int64_t> parse_int(std::string_view text);
/// The same for what is not below 0.
std::optional<uint64_t> parse_uint(std::string_view text);

/// The number that `text` is, "nan" and "inf" among them. Nothing where there is more in it than the number; values too
/// large for a double are infinite, as in Python.
std::optional<double> parse_float(std::string_view text);

/// Well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);

}  // namespace bellows::io
