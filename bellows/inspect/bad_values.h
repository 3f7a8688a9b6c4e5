#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace bellows::inspect {

/// Whether some values are NaN or infinite. Private to the component.
struct BadValues {
  bool nan = false;
  bool inf = false;
  bool any() const { return nan || inf; }
  BadValues& operator|=(BadValues other) {
    nan = nan || other.nan;
    inf = inf || other.inf;
    return *this;
  }
};

/// Checks a dense floating-point or complex tensor. All other tensors count as good. On the CPU, the function reads the
/// memory directly and runs no operator.
/// Cost: one pass over good values, two passes over bad values
BadValues bad_values(const at::Tensor& tensor);
/// Checks a tensor, a list of tensors or a number.
BadValues bad_values(const c10::IValue& value);

}  // namespace bellows::inspect
