#include "bellows/serve/trace/trace_context.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>

namespace bellows::serve {

namespace {

bool is_hexadecimal(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_zero(std::string_view text) {
  return text.find_first_not_of('0') == std::string_view::npos;
}

/// Identifiers must be unique, but they are no secrets.
std::string random_digits(size_t count) {
  static thread_local std::mt19937_64 random{[] {
    std::random_device device;
    return (uint64_t{device()} << 32) ^ device();
  }()};
  constexpr char digits[] = "0123456789abcdef";
  constexpr size_t digits_per_number = 16;
  std::string text;
  while (text.size() < count) {
    uint64_t number = random();
    for (size_t i = 0; i < digits_per_number && text.size() < count; ++i, number >>= 4) text += digits[number & 15];
  }
  if (is_zero(text)) text.back() = '1';
  return text;
}

}  // namespace

std::optional<TraceContext> parse_traceparent(std::string_view header) {
  // VERSION-TRACE-PARENT-FLAGS. Later versions may add fields at the end.
  constexpr size_t size = 55, trace_at = 3, trace_size = 32, parent_at = 36, parent_size = 16, flags_at = 53;
  if (header.size() < size) return std::nullopt;
  const std::string_view version = header.substr(0, 2), trace = header.substr(trace_at, trace_size),
                         parent = header.substr(parent_at, parent_size), flags = header.substr(flags_at, 2);
  const bool dashes = header[trace_at - 1] == '-' && header[parent_at - 1] == '-' && header[flags_at - 1] == '-';
  const bool end = version == "00" ? header.size() == size : header.size() == size || header[size] == '-';
  const bool digits =
      is_hexadecimal(version) && is_hexadecimal(trace) && is_hexadecimal(parent) && is_hexadecimal(flags);
  if (!dashes || !end || !digits || version == "ff" || is_zero(trace) || is_zero(parent)) return std::nullopt;
  const char last = flags.back();
  const int bits = last <= '9' ? last - '0' : last - 'a' + 10;
  return TraceContext{.trace_id = std::string(trace), .parent_id = std::string(parent), .sampled = (bits & 1) != 0};
}

TraceContext next_span(std::string_view traceparent) {
  constexpr size_t trace_size = 32, span_size = 16;
  std::optional<TraceContext> context = parse_traceparent(traceparent);
  if (!context) context = TraceContext{.trace_id = random_digits(trace_size)};
  context->span_id = random_digits(span_size);
  return std::move(*context);
}

}  // namespace bellows::serve
