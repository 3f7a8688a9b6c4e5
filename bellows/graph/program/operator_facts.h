#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace c10 {
class OperatorHandle;
}

namespace bellows::graph {

/// Facts about an operator, derived once from its schema and tags.
struct OperatorFacts {
  enum class Kind : uint8_t { tensor, tensor_list, optional_tensor_list, number, constant };

  std::string name;  ///< "aten::add.Tensor"
  std::shared_ptr<const c10::OperatorHandle> handle;
  std::vector<Kind> arguments;  ///< `number`: may change from call to call without changing a shape
  std::vector<int> writes;      ///< arguments that are written: as declared, or known to be although undeclared
  size_t results = 0;
  int dropout_argument = -1;      ///< index of a probability: if it is 0, the operator is not random; -1: none
  int train_argument = -1;        ///< index of a flag: if it is false, the operator is not random; -1: none
  bool factory = false;           ///< has no tensor arguments
  bool reads_no_data = false;     ///< reads only the metadata of its tensors, such as sizes
  bool random = false;            ///< draws random numbers from a generator
  bool known = false;             ///< an operator of libtorch, or one with the tag pt2_compliant_tag
  bool host_value = false;        ///< a result is not a tensor, or result sizes depend on data
  bool masks_only = false;        ///< sizes depend on data only if a tensor is a mask (bool or uint8)
  bool changes_metadata = false;  ///< changes sizes or strides in place
  bool reads_float32_precision = false;
};

/// Threads: safe; the reference stays valid
const OperatorFacts& operator_facts(const c10::OperatorHandle& handle);

}  // namespace bellows::graph
