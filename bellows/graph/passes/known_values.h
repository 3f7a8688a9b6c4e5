#pragma once

#include <unordered_map>

#include "bellows/graph/program/program_edit.h"

namespace bellows::graph::detail {

/// The values of a program that are known before it runs.
class KnownValues {
 public:
  explicit KnownValues(Program& program) : program_(program) {
    for (const auto& constant : program.constants) known_.emplace(constant.value, constant.tensor);
  }
  bool any() const { return !known_.empty(); }
  bool contains(const Operand& operand) const { return known_.contains(operand.value); }
  /// Returns the operand as a tensor. For an undefined operand, the tensor is undefined.
  at::Tensor operator[](const Operand& operand) const {
    return operand.value == no_value ? at::Tensor() : operand.geometry.over(known_.at(operand.value).storage());
  }
  /// Adds a constant.
  /// Params: tensor – must be the only owner of its buffer
  Operand add(const at::Tensor& tensor, c10::DispatchKeySet keys) {
    Geometry geometry = Geometry::of(tensor);
    geometry.keys = keys;
    const ValueId value = add_value(program_, geometry, tensor.storage().nbytes());
    program_.constants.push_back({.value = value, .tensor = tensor});
    known_.emplace(value, tensor);
    return {.value = value, .geometry = geometry};
  }

 private:
  Program& program_;
  std::unordered_map<ValueId, at::Tensor> known_;
};

}  // namespace bellows::graph::detail
