#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "bellows/core/model.h"

namespace bellows::optim {

/// Returns the state and hyperparameters of any libtorch optimizer by name, for example "param_groups.<g>.lr". In
/// "state.<i>.exp_avg", i counts the parameters of all groups. Numbers are 0-d tensors (float64, int64). The tensors
/// share memory with the optimizer.
///
/// This format applies to SGD, Adam, AdamW, RMSprop, Adagrad, Lion and Adafactor. For every other class, there is one
/// tensor "archive" with the serialized bytes of the optimizer. The name of a master weight is "state.<i>.master".
/// Low-bit state is a tensor of bytes. The name of its scales is "state.<i>.exp_avg.absmax".
NamedTensors state_dict(const torch::optim::Optimizer& optimizer);
/// Returns whether state_dict() has named tensors, and not one tensor "archive". Cost: that of state_dict()
bool has_named_state(const torch::optim::Optimizer& optimizer);

/// Loads the result of state_dict(). Tensors are copied with their strides, and are converted to the dtype of the
/// optimizer's state. The optimizer must have parameters of the same shapes.
/// Throws: c10::ValueError if the class, or the number or shapes of parameters differ; nothing is changed in this case
/// Ref:    torch.optim.Optimizer.load_state_dict
void load_state_dict(torch::optim::Optimizer& optimizer, const NamedTensors& state);

/// Splits "state.<i>.<field>" into i and the field. Returns nothing for other names, such as those of options.
std::optional<std::pair<size_t, std::string>> split_state_name(const std::string& name);
/// Returns "state.<index>.<field>".
std::string state_name(size_t index, const std::string& field);

/// The learning rate of the first parameter group.
double get_lr(const torch::optim::Optimizer& optimizer);
/// Sets the learning rate of every parameter group, and of the learning-rate tensor if there is one.
void set_lr(torch::optim::Optimizer& optimizer, double lr);

}  // namespace bellows::optim
