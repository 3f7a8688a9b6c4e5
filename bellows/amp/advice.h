#pragma once

#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::amp {

/// Lists sizes that prevent matrix units (tensor cores, AMX) from reaching their full speed in bf16 and fp16: dims of
/// weight matrices, and the batch size, that are not multiples of 8. Each entry is a sentence with the module, the
/// shape and a size to pad to. Empty if there is nothing to report.
/// Params: batch_size – 0: not checked
/// Ref:    NVIDIA, Train With Mixed Precision, "Satisfying Tensor Core shape constraints"
std::vector<std::string> advise(const Model& model, int64_t batch_size = 0);

}  // namespace bellows::amp
