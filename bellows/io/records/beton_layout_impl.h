#pragma once

// What the reader and the writer of .beton files share: places and sizes as NumPy lays them out.

#include "bellows/io/records/beton.h"

namespace bellows::io::beton {

constexpr uint16_t kVersion = 2;
constexpr size_t kHeaderBytes = 24;
constexpr size_t kNameBytes = 16, kArgumentBytes = 1024;
constexpr size_t kFieldBytes = 1 + kNameBytes + kArgumentBytes;
constexpr size_t kMaxDims = 32;
constexpr size_t kMaxFields = 1000;  // a limit of this house; the format could count to 65,535
constexpr size_t kTypeLengthAt = 8 * kMaxDims, kTypeAt = kTypeLengthAt + 8;  // in the arguments of an array
constexpr size_t kEntryBytes = 24;
constexpr size_t kImagePointerAt = 5;  // behind u8 mode, u16 width, u16 height

inline bool is_number(BetonType type) {
  return type == BetonType::float64 || type == BetonType::int64;
}
inline bool is_array(BetonType type) {
  return type == BetonType::array || type == BetonType::tensor;
}

/// Where a field's pointer stands in its part of the row.
inline size_t pointer_at(BetonType type) {
  return type == BetonType::image ? kImagePointerAt : 0;
}

/// Bytes of a row, and where the fields begin in it.
struct RowLayout {
  std::vector<size_t> offsets;
  size_t bytes = 0;
};

/// numpy.dtype(…, align=True): numbers and arrays' pointers are aligned to 8, packed records to 1; the row is padded to
/// its largest alignment.
inline RowLayout row_layout(const std::vector<BetonField>& fields) {
  RowLayout layout;
  bool aligned = false;
  const auto align = [](size_t n) { return (n + 7) / 8 * 8; };
  for (const BetonField& field : fields) {
    const bool word = is_number(field.type) || is_array(field.type);
    if (word) layout.bytes = align(layout.bytes);
    layout.offsets.push_back(layout.bytes);
    layout.bytes += word ? 8 : field.type == BetonType::image ? 13 : 16;
    aligned = aligned || word;
  }
  if (aligned) layout.bytes = align(layout.bytes);
  return layout;
}

/// Bytes of an array's values. The sizes have been checked: their product is at most a page.
inline uint64_t array_bytes(const BetonField& field) {
  uint64_t bytes = c10::elementSize(field.dtype);
  for (const int64_t size : field.sizes) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

}  // namespace bellows::io::beton
