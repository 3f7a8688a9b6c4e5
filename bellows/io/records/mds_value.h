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
  ByteSpan bytes;         ///< a view into the column, or, for a number stored as text, into `buffer`
  bool is_array = false;  ///< an array of `dtype` with the sizes that decode() appended; otherwise bytes
  c10::ScalarType dtype = c10::ScalarType::Byte;
};

/// The encoding of an MDS column: "int", "ndarray:float32:3,4", "jpeg", …
///
/// Numbers and ndarray are arrays; str_int and str_float are scalars of int64 and float64. pil is an array [height,
/// width, channels] of bytes (for the modes I, I;16 and F: of int32, uint16 and float32). All others are bytes: bytes,
/// str and str_decimal (texts), json, jpeg and png (files), jpegarray and list[…] (see mds_list). pkl is rejected,
/// because reading it can execute code.
/// Ref: streaming/base/format/mds/encodings.py
class MdsEncoding {
 public:
  /// Throws: c10::ValueError if the encoding is unknown (the message suggests the nearest name), is pkl, or is an
  ///         ndarray with an unsupported shape or dtype
  static MdsEncoding parse(std::string_view text);

  /// Bytes of every value; 0 if they differ.
  uint64_t fixed_size() const;
  /// The maximum number of sizes that decode() appends.
  size_t max_dims() const;

  /// Params: sizes – the array's sizes are appended
  ///         buffer – for numbers stored as text, eight bytes are appended; reserve them, or earlier views become
  ///         invalid
  /// Throws: c10::ValueError if the value is invalid; the message says what was expected and found, but not where
  MdsValue decode(ByteSpan bytes, std::vector<int64_t>& sizes, Bytes& buffer) const;

  /// Appends an encoded array, or unchanged bytes, to `out`.
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
  std::optional<c10::ScalarType> dtype_;  // of a number, or common to all arrays
  std::vector<int64_t> shape_;            // common to all arrays; empty: each has its own
};

/// MDS's name of a numeric type; "" if it has none.
std::string_view mds_dtype_name(c10::ScalarType dtype);

/// The encodings that parse() supports, without ndarray's options.
std::vector<std::string> mds_encoding_names();

/// The parts of a jpegarray, jpeg_array or list[…] column.
/// Throws: c10::ValueError if the sizes do not match the bytes or the encoding is another one
std::vector<ByteSpan> mds_list(std::string_view encoding, ByteSpan bytes);

}  // namespace bellows::io
