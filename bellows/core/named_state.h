#pragma once

#include "bellows/core/model.h"

namespace bellows {

/// Interface of optimizers whose state is sharded over ranks, so that optim::state_dict() cannot read it. These
/// optimizers save and load the complete state by name, like an optimizer on a single rank.
class NamedState {
 public:
  virtual NamedTensors state_dict() const = 0;
  virtual void load_state_dict(const NamedTensors& state) = 0;

 protected:
  ~NamedState() = default;
};

}  // namespace bellows
