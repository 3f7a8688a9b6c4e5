#pragma once

#include "bellows/core/model.h"

namespace bellows {

/// An optimizer whose state optim::state_dict() cannot see by itself, because it lies on several ranks: it gives and takes
/// it under the names, and whole, as the optimizer would that runs alone.
class NamedState {
 public:
  virtual NamedTensors state_dict() const = 0;
  virtual void load_state_dict(const NamedTensors& state) = 0;

 protected:
  ~NamedState() = default;
};

}  // namespace bellows
