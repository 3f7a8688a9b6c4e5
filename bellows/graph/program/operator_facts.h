#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace c10 {
class OperatorHandle;
}

namespace bellows::graph {

/// Properties of an operator, derived once from its schema and tags.
struct OperatorFacts {
  enum class Kind : uint8_t { tensor, tensor_list, optional_tensor_list, number, constant };

  std::string name;  ///< such as "aten::add.Tensor"
  std::shared_ptr<const c10::OperatorHandle> handle;
  std::vector<Kind> arguments;  ///< `number`: may differ between calls without changing a shape
  std::vector<int> writes;      ///< arguments that are written, including known writes that the schema does not declare
  size_t results = 0;
  int dropout_argument = -1;      ///< index of a probability; if it is 0, the operator is not random; -1 if absent
  int train_argument = -1;        ///< index of a flag; if it is false, the operator is not random; -1 if absent
  bool factory = false;           ///< has no tensor arguments
  bool reads_no_data = false;     ///< reads, and perhaps changes, only metadata of its tensors, such as sizes
  bool random = false;            ///< draws random numbers from a generator
  bool known = false;             ///< an operator of libtorch, or an operator with the tag pt2_compliant_tag
  bool host_value = false;        ///< a result is not a tensor, or the sizes of a result depend on data
  bool masks_only = false;        ///< sizes depend on data only if a tensor is a mask (bool or uint8)
  bool changes_metadata = false;  ///< changes sizes or strides in place
  bool reads_float32_precision = false;
  /// Has no effects but its declared writes, and is safe on zeros, so that it may run to find the sizes of its results.
  /// False for operators of other libraries, and for linear algebra, which uses pivots as indices without checks.
  bool runs_on_zeros = false;
};

/// Returns the properties of an operator. The reference stays valid.
/// Threads: thread-safe
const OperatorFacts& operator_facts(const c10::OperatorHandle& handle);

}  // namespace bellows::graph
