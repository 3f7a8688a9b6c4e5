#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <utility>

#include "bellows/graph/recording/graph.h"

namespace bellows::graph::detail {

/// Returns an argument of a recorded operator as the operator expects it. A number that is an input of the recording has
/// its recorded value.
/// Params: tensor_of – returns the tensor of a Value
template <class TensorOf>
c10::IValue value_of(const Argument& argument, const TensorOf& tensor_of) {
  using Kind = OperatorFacts::Kind;
  switch (argument.kind) {
    case Kind::tensor:
      return tensor_of(argument.tensors[0]);
    case Kind::tensor_list: {
      c10::List<at::Tensor> list;
      for (const Value& value : argument.tensors) list.push_back(tensor_of(value));
      return list;
    }
    case Kind::optional_tensor_list: {
      c10::List<std::optional<at::Tensor>> list;
      for (const Value& value : argument.tensors)
        list.push_back(value.buffer == no_buffer ? std::nullopt : std::make_optional(tensor_of(value)));
      return list;
    }
    default:
      return argument.constant;
  }
}

/// Creates a tensor with a recorded geometry over another storage. The constructor of a tensor decides on its own
/// whether the tensor has a version counter, so `counted` states whether the recorded one had it.
inline at::Tensor recorded_over(const Geometry& geometry, bool counted, c10::Storage storage) {
  at::Tensor made = geometry.over(std::move(storage));
  c10::TensorImpl& impl = *made.unsafeGetTensorImpl();
  if (impl.version_counter().enabled() == counted) return made;
  const c10::VariableVersion counter = counted ? c10::VariableVersion(0) : c10::VariableVersion();
  return at::Tensor(impl.shallow_copy_and_detach(counter, impl.allow_tensor_metadata_change()));
}

}  // namespace bellows::graph::detail
