#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace bellows {

/// The numerical properties of a floating-point dtype.
struct FloatInfo {
  int bits = 0;                ///< number of bits of an element
  double eps = 0;              ///< difference between 1 and the next larger number
  double max = 0;              ///< largest finite number
  double min = 0;              ///< smallest finite number, which is negative
  double smallest_normal = 0;  ///< smallest positive normal number
  double tiny = 0;             ///< the same as smallest_normal
  double resolution = 0;       ///< 10^-d, where d is the number of decimal digits that are always exact
  c10::ScalarType dtype = c10::ScalarType::Float;
};

/// Returns the properties of a floating-point dtype. For a complex dtype, the result describes its real part.
/// Throws: c10::ValueError if the dtype is not a floating-point or complex dtype
/// Ref:    torch.finfo
FloatInfo finfo(c10::ScalarType dtype);

/// The numerical properties of an integer dtype.
struct IntInfo {
  int bits = 0;      ///< number of bits of an element
  uint64_t max = 0;  ///< largest number
  int64_t min = 0;   ///< smallest number
  c10::ScalarType dtype = c10::ScalarType::Long;
};

/// Returns the properties of an integer dtype. Bool is not an integer dtype.
/// Throws: c10::ValueError if the dtype is not an integer dtype
/// Ref:    torch.iinfo
IntInfo iinfo(c10::ScalarType dtype);

}  // namespace bellows
