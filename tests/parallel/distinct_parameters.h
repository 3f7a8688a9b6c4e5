#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::parallel::testing {

/// The parameters of the model, where tied parameters, which have several names, occur once.
inline std::vector<at::Tensor> distinct_parameters(const Model& model) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : model.parameters()) {
    const auto same = [&](const at::Tensor& other) { return other.is_same(parameter); };
    if (std::none_of(result.begin(), result.end(), same)) result.push_back(parameter);
  }
  return result;
}

}  // namespace bellows::parallel::testing
