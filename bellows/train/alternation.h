#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "bellows/train/job.h"

namespace bellows::train {

/// Sets requires_grad of the parameters to false. The destructor sets it to true again for those that required a
/// gradient.
class FrozenParameters {
 public:
  explicit FrozenParameters(const std::vector<at::Tensor>& parameters);
  ~FrozenParameters();
  FrozenParameters(const FrozenParameters&) = delete;
  FrozenParameters& operator=(const FrozenParameters&) = delete;

 private:
  std::vector<at::Tensor> frozen_;
};

/// Throws: c10::ValueError if the jobs cannot alternate: both train the same parameter, `job.alternate` trains a
///         parameter that the model does not contain, or a setting is not supported with two jobs
void check_alternate(const Job& job);

}  // namespace bellows::train
