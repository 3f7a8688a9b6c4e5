#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstring>

#include "bellows/kernels/host_device.h"
#include "bellows/kernels/optimizer_step.h"
#include "bellows/kernels/stochastic_round.h"

namespace bellows::kernels::ref {

/// Returns element i of an array with elements of `type`.
template <class T>
BELLOWS_HOST_DEVICE T load(const void* data, Type type, int64_t i) {
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
BELLOWS_HOST_DEVICE void store(void* data, Type type, int64_t i, T value) {
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

/// Writes the new value of a parameter, and of its master weight if there is one. The parameter is rounded to its type.
template <class T, class Rule>
BELLOWS_HOST_DEVICE void store_param(const StepTensor<Rule>& t, StepTypes types, int64_t i, T value) {
  if (t.master) store(t.master, Type::f32, i, value);
  if (types.stochastic && types.param == Type::bf16 && std::isfinite(value)) {
    const auto number = static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof(bits));
    bits += rounding_bits(t.rounding_seed, static_cast<uint64_t>(i));
    static_cast<uint16_t*>(t.param)[i] = static_cast<uint16_t>(bits >> 16);
  } else {
    store(t.param, types.param, i, value);
  }
}

}  // namespace bellows::kernels::ref
