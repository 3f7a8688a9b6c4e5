#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// What a column's bytes are once they are decoded.
struct MdsValue {
  ByteSpan bytes;         ///< within the column, or, of a number that was text, behind the buffer's old end
  bool is_array = false;  ///< of `dtype`, with the sizes that decode() appended; otherwise bytes as they are
  c10::ScalarType dtype = c10::ScalarType::Byte;
};

/// How a column of an MDS file is encoded: "int", "ndarray:float32:3,4", "jpeg", …
///
/// Numbers and ndarray are arrays; str_int and str_float are scalars of int64 and float64; pil is an array
/// [height, width, channels] of the mode's bytes (of modes I, I;16 and F: int32, uint16 and float32). All else are
/// bytes: bytes, str and str_decimal (texts), json, jpeg and png (files), jpegarray and list[…] (see mds_list).
/// pkl is refused: reading it can run code.
/// Ref: streaming/base/format/mds/encodings.py
class MdsEncoding {
 public:
  /// Throws: c10::ValueError – unknown (nearest match), pkl, a shape or dtype that ndarray cannot have
  static MdsEncoding parse(std::string_view text);

  /// Bytes of every value; 0 when they differ.
  uint64_t fixed_size() const;
  /// The most sizes that decode() appends.
  size_t max_dims() const;

  /// Params: sizes  – the array's are appended
  ///         buffer – eight bytes are appended where text becomes a number; reserve them, or views move
  /// Throws: c10::ValueError – not such a value; the text says what was expected and found, not where
  MdsValue decode(ByteSpan bytes, std::vector<int64_t>& sizes, Bytes& buffer) const;

  /// Appends an array, or bytes as they are, to `out`.
  /// Throws: c10::ValueError – a value that the encoding cannot hold
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
  std::optional<c10::ScalarType> dtype_;  // of a number, or that all arrays share
  std::vector<int64_t> shape_;            // that all arrays share; empty: each has its own
};

/// The name that MDS gives to a type of numbers; "" where it has none.
std::string_view mds_dtype_name(c10::ScalarType dtype);

/// The encodings that parse() knows, without ndarray's options.
std::vector<std::string> mds_encoding_names();

/// The parts of a jpegarray, jpeg_array or list[…] column.
/// Throws: c10::ValueError – sizes that do not fit the bytes, another encoding
std::vector<ByteSpan> mds_list(std::string_view encoding, ByteSpan bytes);

}  // namespace bellows::io
