#pragma once

#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::amp {

/// Sizes that keep matrix units (tensor cores, AMX) from their full rate in bf16 and fp16: dimensions of weight
/// matrices and the batch that are not multiples of 8. One sentence each, with module, shape and a size to pad to.
/// Empty when there is nothing to say.
/// Params: batch_size – 0: not looked at
/// Ref:    NVIDIA, Train With Mixed Precision, "Satisfying Tensor Core shape constraints"
std::vector<std::string> advise(const Model& model, int64_t batch_size = 0);

}  // namespace bellows::amp
