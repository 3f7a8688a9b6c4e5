#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace c10 {
class OperatorHandle;
}

namespace bellows::graph {

/// What this component needs to know of an operator, looked up once in its schema and tags.
struct OperatorFacts {
  enum class Kind : uint8_t { tensor, tensor_list, optional_tensor_list, number, constant };

  std::string name;  ///< "aten::add.Tensor"
  std::shared_ptr<const c10::OperatorHandle> handle;
  std::vector<Kind> arguments;  ///< number: may change from call to call without changing a shape
  std::vector<int> writes;      ///< arguments that are written: declared, or known although undeclared
  size_t results = 0;
  int dropout_argument = -1;      ///< a probability: where it is 0, nothing is random
  int train_argument = -1;        ///< a flag: where it is false, nothing is random
  bool factory = false;           ///< takes no tensors
  bool reads_no_data = false;     ///< looks at its tensors' sizes only, and leaves the memory of its results as it is
  bool random = false;            ///< draws from a generator
  bool known = false;             ///< libtorch's own, or said to be well-behaved (tag pt2_compliant_tag)
  bool host_value = false;        ///< a result is no tensor, or sizes of results depend on data
  bool masks_only = false;        ///< sizes depend on data only where a tensor is a mask: boolean, or of bytes
  bool changes_metadata = false;  ///< in place, of sizes and strides
  bool reads_float32_precision = false;
};

/// Threads: any; the reference stays valid
const OperatorFacts& operator_facts(const c10::OperatorHandle& handle);

}  // namespace bellows::graph
