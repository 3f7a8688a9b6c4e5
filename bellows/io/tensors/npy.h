#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// NumPy's name of a type ("<f4"), or "" if it has none.
std::string_view numpy_name(c10::ScalarType dtype);
/// The type of such a name, or nothing. Python writes '|' for single bytes; '<' and '=' from other writers are
/// accepted, too.
std::optional<c10::ScalarType> numpy_type(std::string_view name);

/// A view of a row-major array.
struct NpyArray {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape;
  ByteSpan bytes;       ///< the values; unaligned
  uint64_t offset = 0;  ///< of `bytes` from the start of the file
};

/// Parses a .npy file, versions 1 to 3, without copying. Supports little-endian bool, integers, floats and complex
/// numbers.
/// Params: where – names the bytes in errors
/// Throws: c10::ValueError if it is another kind of file, is truncated or has bytes after the array; for big-endian and
///         Fortran-ordered arrays, structures, texts, and Python objects (they could execute code); the message says
///         how to convert them
/// Ref:    numpy.load(path, mmap_mode="r", allow_pickle=False)
NpyArray parse_npy(ByteSpan bytes, std::string_view where);

/// Returns the header that precedes the values. Its length does not depend on the first dimension.
/// Throws: c10::ValueError if NumPy does not have the dtype
/// Ref:    numpy.save, byte for byte
std::string make_npy_header(c10::ScalarType dtype, const std::vector<int64_t>& shape);

}  // namespace bellows::io
