#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "bellows/kernels/optimizer_step.h"

namespace bellows::kernels::ref {

/// Element i of an array of any type.
template <class T>
T load(const void* data, Type type, int64_t i) {
  switch (type) {
    case Type::f64:
      return static_cast<T>(static_cast<const double*>(data)[i]);
    case Type::bf16:
      return static_cast<float>(static_cast<const c10::BFloat16*>(data)[i]);
    case Type::f16:
      return static_cast<float>(static_cast<const c10::Half*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}

template <class T>
void store(void* data, Type type, int64_t i, T value) {
  switch (type) {
    case Type::f64:
      static_cast<double*>(data)[i] = value;
      break;
    case Type::bf16:
      static_cast<c10::BFloat16*>(data)[i] = c10::BFloat16(static_cast<float>(value));
      break;
    case Type::f16:
      static_cast<c10::Half*>(data)[i] = c10::Half(static_cast<float>(value));
      break;
    default:
      static_cast<float*>(data)[i] = static_cast<float>(value);
  }
}

}  // namespace bellows::kernels::ref
