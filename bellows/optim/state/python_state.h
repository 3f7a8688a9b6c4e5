#pragma once

#include <torch/optim/optimizer.h>

#include "bellows/io/tensors/pickle_value.h"

namespace bellows::optim {

/// Returns an optimizer's state in the form of Python's `optimizer.state_dict()`. Write it to a file with
/// `io::torch_save`. In Python, pass the loaded object to `load_state_dict`. The keys of Lion are those of the packages
/// lion-pytorch and pytorch-optimizer.
/// Throws: c10::ValueError for a custom optimizer class
io::PickleValue python_state_dict(const torch::optim::Optimizer& optimizer);

/// Loads the result of Python's `optimizer.state_dict()`, as returned by `io::torch_load`. The optimizer must have the
/// same class, and parameters of the same shapes in the same order. Options that exist only in Python (foreach, fused,
/// capturable, differentiable, …) are ignored.
/// Throws: c10::ValueError if the value is not an optimizer's state, or if the class, the number of groups, the number
///         or shapes of parameters, or `maximize` differ. Nothing is changed in this case
/// Ref:    torch.optim.Optimizer.load_state_dict
void load_python_state_dict(torch::optim::Optimizer& optimizer, const io::PickleValue& state);

}  // namespace bellows::optim
