#include "bellows/core/dtype_info.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <limits>

namespace bellows {

namespace {

template <class T>
FloatInfo float_info() {
  using Limits = std::numeric_limits<T>;
  FloatInfo info;
  info.bits = static_cast<int>(sizeof(T) * 8);
  info.eps = static_cast<double>(Limits::epsilon());
  info.max = static_cast<double>(Limits::max());
  info.min = static_cast<double>(Limits::lowest());
  info.smallest_normal = info.tiny = static_cast<double>(Limits::min());
  info.resolution = std::pow(10, -Limits::digits10);
  return info;
}

template <class T>
IntInfo int_info() {
  return {.bits = static_cast<int>(sizeof(T) * 8),
          .max = static_cast<uint64_t>(std::numeric_limits<T>::max()),
          .min = static_cast<int64_t>(std::numeric_limits<T>::min())};
}

FloatInfo float_info_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Double:
      return float_info<double>();
    case c10::ScalarType::Float:
      return float_info<float>();
    case c10::ScalarType::Half:
      return float_info<c10::Half>();
    case c10::ScalarType::BFloat16:
      return float_info<c10::BFloat16>();
    case c10::ScalarType::Float8_e4m3fn:
      return float_info<c10::Float8_e4m3fn>();
    case c10::ScalarType::Float8_e4m3fnuz:
      return float_info<c10::Float8_e4m3fnuz>();
    case c10::ScalarType::Float8_e5m2:
      return float_info<c10::Float8_e5m2>();
    case c10::ScalarType::Float8_e5m2fnuz:
      return float_info<c10::Float8_e5m2fnuz>();
    default:
      TORCH_CHECK_VALUE(false, "finfo: expected a floating-point or complex dtype, got ", c10::toString(dtype), ".",
                        c10::isIntegralType(dtype, /*includeBool=*/false) ? " Use iinfo()." : "");
  }
}

IntInfo int_info_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Byte:
      return int_info<uint8_t>();
    case c10::ScalarType::Char:
      return int_info<int8_t>();
    case c10::ScalarType::Short:
      return int_info<int16_t>();
    case c10::ScalarType::Int:
      return int_info<int32_t>();
    case c10::ScalarType::Long:
      return int_info<int64_t>();
    case c10::ScalarType::UInt16:
      return int_info<uint16_t>();
    case c10::ScalarType::UInt32:
      return int_info<uint32_t>();
    case c10::ScalarType::UInt64:
      return int_info<uint64_t>();
    default:
      TORCH_CHECK_VALUE(false, "iinfo: expected an integer dtype, got ", c10::toString(dtype), ".",
                        c10::isFloatingType(dtype) || c10::isComplexType(dtype) ? " Use finfo()." : "");
  }
}

}  // namespace

FloatInfo finfo(c10::ScalarType dtype) {
  const c10::ScalarType real = c10::isComplexType(dtype) ? c10::toRealValueType(dtype) : dtype;
  FloatInfo info = float_info_of(real);
  info.dtype = real;
  return info;
}

IntInfo iinfo(c10::ScalarType dtype) {
  IntInfo info = int_info_of(dtype);
  info.dtype = dtype;
  return info;
}

}  // namespace bellows
