#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <string_view>

#include "bellows/inspect/flops.h"

namespace c10 {
class OperatorHandle;
struct FunctionSchema;
}  // namespace c10

namespace bellows::inspect {

/// The properties of an operator. They are looked up only once per operator. Private to the component.
struct OpInfo {
  std::string name;                             ///< for example "aten::add"
  const c10::FunctionSchema* schema = nullptr;  ///< null if the dispatcher does not have the operator
  bool composite = false;                       ///< consists of other operators, which are counted instead
  bool view = false;                            ///< its results alias inputs, and it reads or writes no data
  bool uninitialized = false;                   ///< allocates memory without writing to it
  bool random = false;                          ///< draws random numbers from a generator
  bool host_value = false;                      ///< its result is a value on the host
  bool dynamic_shape = false;                   ///< the shape of its result depends on data
  bool copy = false;                            ///< may copy data between devices
  bool autocast[2] = {false, false};            ///< whether it has an autocast kernel on the CPU and on CUDA
  FlopFormula flops = nullptr;
};

/// Threads: thread-safe; the returned reference stays valid
const OpInfo& op_info(std::string_view name, std::string_view overload);
const OpInfo& op_info(const c10::OperatorHandle& handle);

/// Returns true if this call only runs autocast's wrapper, which calls the same operator again with cast inputs.
bool autocast_wraps(const OpInfo& info, c10::ArrayRef<c10::IValue> inputs);

/// Calls `visit(tensor)` for each defined tensor in an argument, which is a tensor, a list of tensors, or a list of
/// optional tensors.
template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) visit(tensor);
    }
  } else if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor() && element.toTensor().defined()) visit(element.toTensor());
    }
  }
}

template <class Visit>
void for_each_tensor(c10::ArrayRef<c10::IValue> values, const Visit& visit) {
  for (const c10::IValue& value : values) for_each_tensor(value, visit);
}

/// Returns the number of bytes that a kernel reads or writes. An expanded tensor has less memory than elements.
int64_t touched_bytes(const at::Tensor& tensor);
/// Returns the sum over all tensors in the arguments.
int64_t touched_bytes(c10::ArrayRef<c10::IValue> values);

/// Shortens a name to `width` bytes for a table. Keeps its end, which distinguishes names.
std::string shortened(const std::string& name, size_t width);

}  // namespace bellows::inspect
