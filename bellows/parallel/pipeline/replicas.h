#pragma once

#include <c10/core/Device.h>

#include "bellows/comm/group.h"
#include "bellows/core/named_state.h"

/// Pipelines that train the same model on different batches. `replicas` is the group of the ranks that hold the same
/// stages, such as the data axis of a mesh. All functions are collective.
namespace bellows::parallel {

/// Gives all replicas the same weights, or checks that they have them.
/// Params: held – parameters and buffers of this rank; broadcast – copy those of the first replica
/// Throws: c10::ValueError if the weights differ and `broadcast` is not set (the message names the first such tensor)
void start_replicas(const NamedTensors& held, const comm::Group& replicas, bool broadcast);

double sum_over_replicas(double number, const comm::Group& replicas, c10::Device device);

}  // namespace bellows::parallel
