#pragma once

#include <torch/optim/optimizer.h>

#include "bellows/io/tensors/pickle_value.h"

namespace bellows::optim {

/// An optimizer's state as Python's `optimizer.state_dict()`: `io::torch_save` writes a file of it that Python gives to
/// `load_state_dict`. Lion's keys are those that the packages lion-pytorch and pytorch-optimizer use.
/// Throws:   c10::ValueError – an optimizer of a class of your own
io::PickleValue python_state_dict(const torch::optim::Optimizer& optimizer);

/// Takes what Python's `optimizer.state_dict()` gave, as `io::torch_load` reads it. The optimizer must be of the same
/// class, with parameters of the same shapes in the same order. Options that only Python has (foreach, fused,
/// capturable, differentiable, …) are left out.
/// Throws:   c10::ValueError – not an optimizer's state; another class, number of groups, number or shape of
///           parameters; `maximize` differs; nothing is changed then
/// Ref:      torch.optim.Optimizer.load_state_dict
void load_python_state_dict(torch::optim::Optimizer& optimizer, const io::PickleValue& state);

}  // namespace bellows::optim
