#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// A decoded value of a column.
struct MdsValue {
  ByteSpan bytes;         ///< a view into the column, or into `buffer` for a number that is stored as text
  bool is_array = false;  ///< true: an array of `dtype`, whose sizes decode() appended; false: bytes
  c10::ScalarType dtype = c10::ScalarType::Byte;
};

/// The encoding of an MDS column: "int", "ndarray:float32:3,4", "jpeg", …
///
/// The number encodings and ndarray decode to arrays. The encodings str_int and str_float decode to scalars of int64
/// and float64. The encoding pil decodes to an array [height, width, channels]. Its dtype is uint8, or int32, uint16
/// and float32 for the modes I, I;16 and F, respectively. All other encodings decode to bytes. These are bytes, str and
/// str_decimal (text), json, jpeg and png (files), jpegarray and list[…] (see mds_list()). The encoding pkl is
/// rejected, because reading it can execute code.
/// Ref: streaming/base/format/mds/encodings.py
class MdsEncoding {
 public:
  /// Throws: c10::ValueError if the encoding is unknown (the message suggests the nearest name), is pkl, or is an
  ///         ndarray with an unsupported shape or dtype
  static MdsEncoding parse(std::string_view text);

  /// Returns the size of every value in bytes, or 0 if sizes differ.
  uint64_t fixed_size() const;
  /// Returns the maximum number of sizes that decode() appends.
  size_t max_dims() const;

  /// Params: sizes – the sizes of the array are appended
  ///         buffer – eight bytes are appended for each number that is stored as text. Reserve the capacity first,
  ///         because a reallocation invalidates earlier views
  /// Throws: c10::ValueError if the value is invalid (the message states the expected and the actual value, but not the
  ///         position)
  MdsValue decode(ByteSpan bytes, std::vector<int64_t>& sizes, Bytes& buffer) const;

  /// Encodes a value and appends it to `out`. Bytes are appended unchanged.
  /// Throws: c10::ValueError if the encoding does not support the value
  void encode(const MdsValue& value, c10::IntArrayRef sizes, std::string& out) const;

 private:
  enum class Kind { bytes, text, json, number, ndarray, text_int, text_float, image, pil, jpeg_array, list };

  MdsValue decode_ndarray(ByteSpan bytes, std::vector<int64_t>& sizes) const;
  MdsValue decode_pil(ByteSpan bytes, std::vector<int64_t>& sizes) const;
  MdsValue decode_number_text(ByteSpan bytes, Bytes& buffer) const;
  void read_ndarray_options(std::string_view options);
  void check_bytes(ByteSpan bytes) const;
  void encode_ndarray(const MdsValue& value, c10::IntArrayRef sizes, std::string& out) const;
  void encode_pil(const MdsValue& value, c10::IntArrayRef sizes, std::string& out) const;
  void encode_number_text(const MdsValue& value, std::string& out) const;

  std::string text_;
  Kind kind_ = Kind::bytes;
  std::optional<c10::ScalarType> dtype_;  // dtype of a number, or of all arrays
  std::vector<int64_t> shape_;            // shape of all arrays; empty: each array has its own shape
};

/// Returns MDS's name for a numeric type, or "" if MDS does not support the type.
std::string_view mds_dtype_name(c10::ScalarType dtype);

/// Returns the names of the encodings that parse() supports, without the options of ndarray.
std::vector<std::string> mds_encoding_names();

/// Returns the parts of a jpegarray, jpeg_array or list[…] column.
/// Throws: c10::ValueError if the sizes do not match the bytes, or if the column has a different encoding
std::vector<ByteSpan> mds_list(std::string_view encoding, ByteSpan bytes);

}  // namespace bellows::io
