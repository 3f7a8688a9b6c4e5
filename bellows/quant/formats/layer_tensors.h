#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <string>

#include "bellows/core/model.h"
#include "bellows/quant/formats/linear.h"
#include "bellows/quant/scheme.h"

/// Steps that all formats of quantized layers share: checks, packed words, unsigned integers, and group indices.
namespace bellows::quant {

/// The tensors of one layer from an untrusted file, with checks.
class LayerTensors {
 public:
  /// Params: format – for errors, such as "GPTQ"
  LayerTensors(const NamedTensors& tensors, std::string format) : tensors_(tensors), format_(std::move(format)) {}

  /// Returns an undefined tensor if there is no tensor of this name.
  at::Tensor find(const std::string& name) const;
  /// Returns a contiguous tensor on the CPU.
  /// Params: shape – −1 matches any size
  /// Throws: c10::ValueError if the tensor is missing, or has another dtype or shape
  at::Tensor get(const std::string& name, at::ScalarType dtype, at::IntArrayRef shape) const;
  /// Returns scales in fp32.
  /// Throws: as get(); also if a scale is not floating-point, not finite or not positive
  at::Tensor scales(const std::string& name, at::IntArrayRef shape) const;

  const std::string& format() const { return format_; }

 private:
  at::Tensor require(const std::string& name, at::IntArrayRef shape) const;
  void check_shape(const std::string& name, const at::Tensor& tensor, at::IntArrayRef shape) const;

  const NamedTensors& tensors_;
  std::string format_;
};

/// Throws: c10::ValueError if the format does not support this number of bits
void check_bits(const std::string& format, int bits, std::initializer_list<int> supported);

/// Packs unsigned integers into little-endian words of 32 bits, beginning with the lowest bits. Rows are padded with 0.
/// Params:  values – uint8, [rows, n]
/// Returns: int32, [rows, ceil(n · bits / 32)]
at::Tensor pack_words(const at::Tensor& values, int bits);
/// The inverse of pack_words().
at::Tensor unpack_words(const at::Tensor& words, int bits, int64_t n);

/// Integers and parameters of a layer as matrices: unsigned values [out, in], scales and zero points [out, groups].
struct UnsignedMatrix {
  at::Tensor values{};       ///< uint8, columns in the order of the inputs
  at::Tensor scale{};        ///< fp32
  at::Tensor zero_point{};   ///< int32
  at::Tensor group_index{};  ///< int32, [in]: the group of each input
};

/// Signed integers and their zero points are shifted by 2^(bits − 1).
/// Throws: c10::ValueError if the layer is not a matrix with scales per row or group, if its tensors do not match, or if a
///         symmetric scheme has zero points other than 2^(bits − 1) after the shift
UnsignedMatrix to_unsigned(const QuantizedLinear& layer, const std::string& format);
/// The inverse of to_unsigned().
/// Params: scheme – of the result, with granularity channel or group. Signed schemes shift the integers back
/// Throws: c10::ValueError if the group index is out of range, or if its groups differ in size
QuantizedLinear from_unsigned(const UnsignedMatrix& matrix, const Scheme& scheme, const std::string& format);

/// Returns the scheme in which a layer with unsigned integers is read: signed and symmetric if `scheme` is symmetric and
/// all zero points are 2^(bits − 1); otherwise, unsigned with zero points.
Scheme scheme_of_zero_points(const at::Tensor& zero_point, Scheme scheme);

/// Returns the number of groups of a row.
/// Throws: c10::ValueError if the group size does not divide the number of inputs, or for another granularity
int64_t groups_of(int64_t inputs, const Scheme& scheme, const std::string& format);

/// Returns scales in the dtype of a file.
/// Throws: c10::ValueError if a scale overflows or becomes 0
at::Tensor stored_scales(const at::Tensor& scale, at::ScalarType dtype, const std::string& format);

}  // namespace bellows::quant
