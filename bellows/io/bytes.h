#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::io {

/// A view of bytes.
using ByteSpan = std::span<const std::byte>;
/// Owned bytes.
using Bytes = std::vector<std::byte>;

/// Returns the bytes as text, without a copy.
inline std::string_view as_text(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
/// Returns the text as bytes, without a copy.
inline ByteSpan as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// Reads a little-endian number at `offset`. The complete number must be inside `bytes`.
template <class T>
T load_little(ByteSpan bytes, size_t offset = 0) {
  static_assert(std::is_unsigned_v<T>);
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i)
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(bytes[offset + i]) << (8 * i)));
  return value;
}

/// Appends `value` to `out` in little-endian order.
template <class T>
void append_little(std::string& out, T value) {
  static_assert(std::is_unsigned_v<T>);
  for (size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

/// Formats untrusted bytes for an error message. The result is in quotes, shows unprintable bytes as \xNN, and covers
/// at most `limit` bytes.
std::string printable(std::string_view text, size_t limit = 40);

/// Describes a file by its first bytes: "a gzip file", "an HTML page", "a git-lfs pointer (the file itself was never
/// downloaded)". For an empty file, it returns "empty". For unknown content, it shows the first bytes.
std::string describe_content(ByteSpan bytes);

}  // namespace bellows::io
