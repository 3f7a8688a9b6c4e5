#pragma once

#include <cstdint>
#include <string>

namespace bellows::quant {

/// Which values of a tensor share one scale and one zero point.
enum class Granularity {
  tensor,   ///< all values
  channel,  ///< the values with the same index along Scheme::axis, such as the weights of one output channel
  token,    ///< the values along the last dim, such as the features of one token
  group,    ///< Scheme::group_size neighbors along the last dim
};

/// Returns "tensor", "channel", "token" or "group".
const char* name_of(Granularity granularity);
/// Throws: c10::ValueError if there is no such name
Granularity granularity_of(const std::string& name);

/// How floating-point values become integers: x ≈ (q − zero_point) · scale, where q has `bits` bits.
///
/// The defaults are those of `torch.ao`'s activations: unsigned 8-bit integers with a zero point per tensor.
struct Scheme {
  int bits = 8;               ///< 1 to 8
  bool is_signed = false;     ///< whether q is in [−2^(bits−1), 2^(bits−1) − 1], or in [0, 2^bits − 1]
  bool symmetric = false;     ///< whether the zero point is fixed to the middle of the range; 0 for signed integers
  bool narrow_range = false;  ///< whether the smallest integer is not used, so that −127 … 127 is symmetric
  Granularity granularity = Granularity::tensor;
  int64_t axis = 0;          ///< for Granularity::channel; negative values count from the last dim
  int64_t group_size = 128;  ///< for Granularity::group; must divide the last dim

  /// Whether zero points are stored: not if all of them are 0, as in signed symmetric schemes.
  bool has_zero_points() const { return !symmetric || !is_signed; }
  /// Whether this is symmetric int8 with one scale per output channel (dim 0), which int8 layers need.
  bool is_int8_per_output() const;
  int64_t smallest() const;
  int64_t largest() const;
  /// Throws: c10::ValueError if a field is out of range
  void check() const;
  /// Returns a short description, such as "int4 symmetric, groups of 128".
  std::string to_text() const;
  bool operator==(const Scheme&) const = default;
};

/// The usual scheme of weights in `torch.ao`: signed, symmetric, one scale per output channel (dim 0).
Scheme weight_scheme(int bits = 8);
/// Signed, symmetric integers with one scale for each `group_size` neighbors along the last dim.
Scheme group_scheme(int bits, int64_t group_size);

}  // namespace bellows::quant
