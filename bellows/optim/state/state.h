#pragma once

#include <torch/optim/optimizer.h>

#include "bellows/core/model.h"

namespace bellows::optim {

/// The state and hyperparameters of any libtorch optimizer by name: "state.<i>.exp_avg" for the i-th parameter over all
/// groups, "param_groups.<g>.lr". Numbers are 0-d tensors (float64, int64). Tensors share storage with the optimizer.
///
/// This format applies to SGD, Adam, AdamW, RMSprop, Adagrad, Lion and Adafactor. For every other class, there is one
/// tensor "archive" with its serialized bytes. A master weight is "state.<i>.master". Low-bit state is a tensor of
/// bytes, and its scales are "state.<i>.exp_avg.absmax".
NamedTensors state_dict(const torch::optim::Optimizer& optimizer);

/// Loads a state_dict(). Tensors are copied with their strides, in the dtype of the optimizer's state. The optimizer
/// must have parameters of the same shapes.
/// Throws: c10::ValueError if the class, or the number or shapes of parameters differ; then nothing is changed
/// Ref:    torch.optim.Optimizer.load_state_dict
void load_state_dict(torch::optim::Optimizer& optimizer, const NamedTensors& state);

/// The learning rate of the first parameter group.
double get_lr(const torch::optim::Optimizer& optimizer);
/// Sets the learning rate of every parameter group, and of the learning-rate tensor if there is one.
void set_lr(torch::optim::Optimizer& optimizer, double lr);

}  // namespace bellows::optim
