#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>

#include "bellows/graph/program/operator_facts.h"

namespace bellows::graph::detail {

/// Returns an argument in the form in which its operator receives it: a tensor, a list of tensors, or `constant`.
/// Params: items     – one item for each tensor of the argument, in order
///         tensor_of – returns the tensor of an item, or an undefined tensor if it is omitted; called once for each item
template <class Items, class TensorOf>
c10::IValue argument_value(OperatorFacts::Kind kind, const Items& items, const c10::IValue& constant,
                           const TensorOf& tensor_of) {
  using Kind = OperatorFacts::Kind;
  switch (kind) {
    case Kind::tensor:
      return tensor_of(items[0]);
    case Kind::tensor_list: {
      c10::List<at::Tensor> list;
      for (const auto& item : items) list.push_back(tensor_of(item));
      return list;
    }
    case Kind::optional_tensor_list: {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& item : items) {
        const at::Tensor tensor = tensor_of(item);
        list.push_back(tensor.defined() ? std::make_optional(tensor) : std::nullopt);
      }
      return list;
    }
    default:
      return constant;
  }
}

}  // namespace bellows::graph::detail
