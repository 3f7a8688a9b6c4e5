#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// Texts by name, in the order of the file.
using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;

/// One tensor in the header of a safetensors file.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;           ///< the format's name: "F32", "BF16", "I64", …
  std::vector<int64_t> shape;  ///< sizes of the row-major data
  uint64_t begin = 0;          ///< position in bytes from the start of the file
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< sorted by `begin`
  SafetensorsMetadata metadata;
};

/// Returns the number of bits of one element, or 0 if the format does not support the dtype.
/// Ref: safetensors/src/tensor.rs `Dtype`
int safetensors_bits(std::string_view dtype);

/// Parses and checks the header as strictly as the official reader. It checks the length, the JSON, the dtypes, and
/// whether shapes match the number of bytes. The tensors must follow each other without holes or overlaps up to the end
/// of the file. Names must be unique.
/// Params: start – the first safetensors_header_end() bytes of the file, or more
///         file_bytes – size of the file
///         where – name of the file for error messages
/// Throws: c10::ValueError if the header is invalid (the message states `where`, the byte offset or the tensor, and the
///         expected and actual content)
SafetensorsHeader parse_safetensors_header(ByteSpan start, uint64_t file_bytes, std::string_view where);
/// Params: bytes – the complete file
inline SafetensorsHeader parse_safetensors_header(ByteSpan bytes, std::string_view where) {
  return parse_safetensors_header(bytes, bytes.size(), where);
}

/// Returns the position of the first byte after the header.
/// Params: start – the first 9 bytes of the file, or more; all bytes if the file is shorter
/// Throws: like parse_safetensors_header(), if the file is no safetensors file or is too short for the header
uint64_t safetensors_header_end(ByteSpan start, uint64_t file_bytes, std::string_view where);

/// Returns the header for tensors in the given order. It consists of the 8-byte length and the JSON, padded with spaces
/// to a multiple of 8 bytes.
/// Params: entries – begin and end are relative to the first byte after the header
std::string make_safetensors_header(const std::vector<SafetensorsEntry>& entries, const SafetensorsMetadata& metadata);

/// Returns true if the official writer puts `a` before `b`. The writer sorts by dtype (wide dtypes first), then by
/// name.
bool safetensors_before(const SafetensorsEntry& a, const SafetensorsEntry& b);

}  // namespace bellows::io
