#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

/// Functions that read and write individual values of type float, double, BFloat16 or Half as double.
namespace bellows::kernels::ref {

inline double value_at(const void* values, c10::ScalarType dtype, int64_t i) {
  switch (dtype) {
    case c10::ScalarType::Double:
      return static_cast<const double*>(values)[i];
    case c10::ScalarType::BFloat16:
      return static_cast<const c10::BFloat16*>(values)[i];
    case c10::ScalarType::Half:
      return static_cast<const c10::Half*>(values)[i];
    default:
      return static_cast<const float*>(values)[i];
  }
}

inline void set_value_at(void* values, c10::ScalarType dtype, int64_t i, double value) {
  switch (dtype) {
    case c10::ScalarType::Double:
      static_cast<double*>(values)[i] = value;
      break;
    case c10::ScalarType::BFloat16:
      static_cast<c10::BFloat16*>(values)[i] = static_cast<float>(value);
      break;
    case c10::ScalarType::Half:
      static_cast<c10::Half*>(values)[i] = static_cast<float>(value);
      break;
    default:
      static_cast<float*>(values)[i] = static_cast<float>(value);
  }
}

/// Returns the type in which values of `dtype` are summed.
inline c10::ScalarType accumulation_type(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Double ? dtype : c10::ScalarType::Float;
}

}  // namespace bellows::kernels::ref
