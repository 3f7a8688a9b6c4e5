#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <utility>

#include "bellows/graph/program/argument_value.h"
#include "bellows/graph/recording/graph.h"

namespace bellows::graph::detail {

/// Returns an argument of a recorded operator as the operator expects it. A number that is an input of the recording has
/// its recorded value.
/// Params: tensor_of – returns the tensor of a Value
template <class TensorOf>
c10::IValue value_of(const Argument& argument, const TensorOf& tensor_of) {
  return argument_value(argument.kind, argument.tensors, argument.constant, tensor_of);
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
