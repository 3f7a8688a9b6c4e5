#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace bellows::inspect {

/// Whether some values include NaN or infinity. Private to the component.
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

/// Checks a dense floating-point or complex tensor; other tensors count as good. On the CPU it reads the memory and
/// runs no operator.
/// Cost: one pass over good values, two over bad ones
BadValues bad_values(const at::Tensor& tensor);
/// Checks a tensor, a list of tensors or a number.
BadValues bad_values(const c10::IValue& value);

}  // namespace bellows::inspect
