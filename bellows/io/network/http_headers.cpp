#include "bellows/io/network/http_headers.h"

#include <algorithm>
#include <charconv>

#include "bellows/core/text.h"

namespace bellows::io {

namespace {

std::optional<uint64_t> header_number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() && value <= INT64_MAX ? std::optional(value) : std::nullopt;
}

std::string_view header_value(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\r' || text.back() == '\n')) text.remove_suffix(1);
  return text;
}

}  // namespace

void HttpHeaders::take(std::string_view line) {
  if (line.starts_with("HTTP/")) {
    *this = {};
    return;
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  const std::string name = lower_case(line.substr(0, colon));
  const std::string_view value = header_value(line.substr(colon + 1));
  if (name == "etag") file.etag = value;
  if (name == "last-modified") file.last_modified = value;
  if (name == "content-length") length = header_number(value);
  if (name == "content-range") {
    const size_t slash = value.find('/');
    if (slash != std::string_view::npos) total = header_number(value.substr(slash + 1));
    if (value.starts_with("bytes ")) range_begin = header_number(value.substr(6));
  }
}

}  // namespace bellows::io
