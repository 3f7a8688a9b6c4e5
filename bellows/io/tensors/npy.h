#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// Returns NumPy's name for a dtype ("<f4"), or "" if NumPy does not support the dtype.
std::string_view numpy_name(c10::ScalarType dtype);
/// Returns the dtype with this name in NumPy, or nothing if there is none. NumPy writes the prefix '|' for types of one
/// byte. For these types, any other prefix, such as '<' or '=', is also accepted.
std::optional<c10::ScalarType> numpy_type(std::string_view name);

/// A view of a row-major array.
struct NpyArray {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape;
  ByteSpan bytes;       ///< the values; may be unaligned
  uint64_t offset = 0;  ///< position of `bytes` in the file
};

/// Parses a .npy file of version 1, 2 or 3. Nothing is copied. Supports little-endian bool, integers, floats and
/// complex numbers.
/// Params: where – name of the bytes for error messages
/// Throws: c10::ValueError if the file is not a .npy file, is truncated, or has bytes after the array; if it holds a
///         big-endian or Fortran-ordered array, structures, texts, or Python objects, which could execute code (the
///         message says how to convert the array)
/// Ref:    numpy.load(path, mmap_mode="r", allow_pickle=False)
NpyArray parse_npy(ByteSpan bytes, std::string_view where);

/// Returns the header that precedes the values. Its length does not depend on the first dimension.
/// Throws: c10::ValueError if NumPy does not support the dtype
/// Ref:    numpy.save, which writes the same bytes
std::string make_npy_header(c10::ScalarType dtype, const std::vector<int64_t>& shape);

}  // namespace bellows::io
