#include "bellows/io/tables/number_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace bellows::io {

namespace {

std::string_view without_plus(std::string_view text) {
  const bool plus = text.size() > 1 && text[0] == '+' && text[1] != '-' && text[1] != '+';
  return plus ? text.substr(1) : text;
}

template <class T>
std::optional<T> parse_whole(std::string_view text) {
  text = without_plus(text);
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// True if the magnitude of a decimal number is below 1: from_chars does not report whether a value is too large or too
/// small.
bool is_below_one(std::string_view text) {
  const size_t e = std::min(text.find_first_of("eE"), text.size());
  const std::string_view digits = text.substr(0, e), exponent = text.substr(std::min(e + 1, text.size()));
  const size_t first = digits.find_first_of("123456789"), point = std::min(digits.find('.'), digits.size());
  const double places = static_cast<double>(point) - static_cast<double>(first) - (first > point ? 0 : 1);
  if (exponent.empty()) return places < 0;
  const auto shift = parse_whole<int64_t>(exponent);
  return shift ? places + static_cast<double>(*shift) < 0 : exponent.starts_with('-');
}

}  // namespace

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 32> buffer{};
  const auto [end, error] =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
  const std::string_view text(buffer.data(), static_cast<size_t>(end - buffer.data()));
  const size_t e = text.find('e');
  const auto exponent = static_cast<int>(*parse_int(text.substr(e + 1)));
  // Python expands exponents in [-4, 16).
  if (exponent < -4 || exponent >= 16) return std::string(text);
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  const std::string sign = text[0] == '-' ? "-" : "";
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::optional<int64_t> parse_int(std::string_view text) {
  return parse_whole<int64_t>(text);
}

std::optional<uint64_t> parse_uint(std::string_view text) {
  return parse_whole<uint64_t>(text);
}

std::optional<double> parse_float(std::string_view text) {
  text = without_plus(text);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || end != text.data() + text.size() || text.back() == ')') return std::nullopt;  // nan(…)
  if (error == std::errc::result_out_of_range) {
    const double limit = is_below_one(text) ? 0.0 : std::numeric_limits<double>::infinity();
    return text[0] == '-' ? -limit : limit;
  }
  if (error != std::errc()) return std::nullopt;
  return value;
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || text.size() - i < length) return false;
    uint32_t code = lead & (0x7fU >> length);
    for (size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xc0) != 0x80) return false;
      code = code << 6 | (next & 0x3f);
    }
    constexpr uint32_t smallest[] = {0x80, 0x800, 0x10000};
    if (code < smallest[length - 2] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    i += length;
  }
  return true;
}

}  // namespace bellows::io
