#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "bellows/train/job.h"

namespace bellows::train {

/// While this object exists, parameters get no gradients. Afterwards, those that had gradients get them again.
class FrozenParameters {
 public:
  explicit FrozenParameters(const std::vector<at::Tensor>& parameters);
  ~FrozenParameters();
  FrozenParameters(const FrozenParameters&) = delete;
  FrozenParameters& operator=(const FrozenParameters&) = delete;

 private:
  std::vector<at::Tensor> frozen_;
};

/// Throws: c10::ValueError if the jobs cannot alternate: they train the same parameter, `job.alternate` trains a parameter
///         that the model does not contain, or a setting works with one job only
void check_alternate(const Job& job);

}  // namespace bellows::train
