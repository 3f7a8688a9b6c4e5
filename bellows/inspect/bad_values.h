#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace bellows::inspect {

/// Whether values that no computation should make are among some. Private to the component.
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

/// Looks at a dense floating or complex tensor; all others are good. On the CPU it reads memory and runs no operator.
/// Cost: one pass over good values, two over bad ones
BadValues bad_values(const at::Tensor& tensor);
/// Of a tensor, a list of them, or a number.
BadValues bad_values(const c10::IValue& value);

}  // namespace bellows::inspect
