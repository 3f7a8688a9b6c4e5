#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/quant/affine.h"

namespace bellows::quant {

/// The weight of a linear layer as files store it: integers, and optionally an order of the inputs.
struct QuantizedLinear {
  QuantizedTensor weight{};  ///< [out, in]
  /// int64, [in]: column j of `weight` belongs to input input_order[j], so that the columns of a group are neighbors.
  /// Undefined if the columns have the order of the inputs. Only files with a group index need it.
  at::Tensor input_order{};

  /// Returns the weight with columns in the order of the inputs.
  at::Tensor dequantize(at::ScalarType dtype = at::kFloat) const;
};

}  // namespace bellows::quant
