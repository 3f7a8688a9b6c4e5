#pragma once

#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::amp {

/// Lists the sizes that prevent matrix units (tensor cores, AMX) from reaching their full speed in bf16 and fp16. The
/// function checks the dims of weight matrices and the batch size, and lists those that are not multiples of 8. Each
/// entry is a sentence that names the module, the shape and the size to pad to. The list is empty if there is nothing
/// to report.
/// Params: batch_size – the batch size to check; 0: the batch size is not checked
/// Throws: c10::ValueError if batch_size is negative
/// Ref:    NVIDIA, Train With Mixed Precision, "Satisfying Tensor Core shape constraints"
std::vector<std::string> advise(const Model& model, int64_t batch_size = 0);

}  // namespace bellows::amp
