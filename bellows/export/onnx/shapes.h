#pragma once

#include <string>
#include <vector>

#include "bellows/export/onnx/call.h"

namespace bellows::onnx_export {

/// Returns a tensor that is broadcast to other sizes.
std::string expanded(Call& call, const std::string& name, const VariedSizes& from, const VariedSizes& to);

/// Returns the product of the sizes of some dims.
Varied product_of(const VariedSizes& sizes, const std::vector<int64_t>& dims, size_t recordings);

/// Returns all dims of a tensor: 0 to rank - 1.
std::vector<int64_t> all_dims(int64_t rank);

/// Returns GELU, exact or approximated by tanh.
std::string gelu_of(Call& call, const std::string& x, c10::ScalarType dtype, bool tanh);

}  // namespace bellows::onnx_export
