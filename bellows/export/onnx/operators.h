#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::onnx_export {

class Call;

/// How an operator of libtorch becomes nodes of ONNX.
struct OperatorMapping {
  const char* aten;  ///< such as "aten::add.Tensor". In-place operators use the mapping of their pure form
  const char* onnx;  ///< the operators of ONNX, for docs/export.md
  void (*translate)(Call& call);
};

/// Returns the mapping of an operator, or null. The name of an in-place operator finds its pure form.
const OperatorMapping* mapping_of(std::string_view aten);

/// Returns all mappings. The test of docs/export.md compares them with the table there.
std::vector<OperatorMapping> all_mappings();

// The parts of the table.
std::span<const OperatorMapping> pointwise_mappings();
std::span<const OperatorMapping> tensor_mappings();
std::span<const OperatorMapping> reduction_mappings();
std::span<const OperatorMapping> indexing_mappings();
std::span<const OperatorMapping> network_mappings();
std::span<const OperatorMapping> quantized_mappings();

}  // namespace bellows::onnx_export
