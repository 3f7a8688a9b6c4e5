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

/// Properties of an operator, looked up once. Private to the component.
struct OpInfo {
  std::string name;                             ///< "aten::add"
  const c10::FunctionSchema* schema = nullptr;  ///< null if the dispatcher does not have the operator
  bool composite = false;                       ///< composed of other operators, which are counted instead
  bool view = false;                            ///< results alias inputs; nothing is read or written
  bool uninitialized = false;                   ///< allocates without writing
  bool random = false;                          ///< draws from a generator
  bool host_value = false;                      ///< the result is a value on the host
  bool dynamic_shape = false;                   ///< the result's shape depends on data
  bool copy = false;                            ///< may copy between devices
  bool autocast[2] = {false, false};            ///< has an autocast kernel: CPU, CUDA
  FlopFormula flops = nullptr;
};

/// Threads: thread-safe; the reference stays valid
const OpInfo& op_info(std::string_view name, std::string_view overload);
const OpInfo& op_info(const c10::OperatorHandle& handle);

/// True if this call is only autocast's wrapper: the same operator follows inside it with cast inputs.
bool autocast_wraps(const OpInfo& info, c10::ArrayRef<c10::IValue> inputs);

/// Calls `visit(tensor)` for each defined tensor in an argument: a tensor, a list of tensors, or a list of optional
/// tensors.
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

}  // namespace bellows::inspect
