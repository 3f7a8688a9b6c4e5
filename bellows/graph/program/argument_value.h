#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>

#include "bellows/graph/program/program.h"

namespace bellows::graph::detail {

/// Returns an argument in the form in which its operator receives it: a tensor, a list of tensors, or the constant. A
/// number of the program has its recorded value.
/// Params: tensor_of – returns the tensor of an operand, or an undefined tensor if it is omitted; called once for each
///                     operand, in order
template <class TensorOf>
c10::IValue argument_value(const Instruction::Argument& argument, const TensorOf& tensor_of) {
  using Kind = OperatorFacts::Kind;
  switch (argument.kind) {
    case Kind::tensor:
      return tensor_of(argument.operands[0]);
    case Kind::tensor_list: {
      c10::List<at::Tensor> list;
      for (const Operand& operand : argument.operands) list.push_back(tensor_of(operand));
      return list;
    }
    case Kind::optional_tensor_list: {
      c10::List<std::optional<at::Tensor>> list;
      for (const Operand& operand : argument.operands) {
        const at::Tensor tensor = tensor_of(operand);
        list.push_back(tensor.defined() ? std::make_optional(tensor) : std::nullopt);
      }
      return list;
    }
    default:
      return argument.constant;
  }
}

}  // namespace bellows::graph::detail
