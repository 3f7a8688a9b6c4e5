#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/core/model_parts.h"

namespace bellows::parallel {

/// Describes a list of models as one model, whose parts run one after the other. Parameters are named "0.weight",
/// "1.weight" and so on. Only the first model reads the input of the whole model.
/// Throws: c10::ValueError if the list is empty
ModelParts parts_of(const std::vector<Model>& models, const std::string& name = "model");

/// The cost of a part for one micro-batch.
struct PartCost {
  double time_s = 0;            ///< of forward and backward
  int64_t parameter_bytes = 0;  ///< of parameters and buffers
};

/// Runs forward and backward of each part, and measures the time. The parameters' gradients stay as they are. Running
/// statistics and random generators change. All ranks need the same stages, so measure on one rank only.
/// Params:  inputs – one micro-batch; runs – number of measurements, of which the fastest counts
/// Cost:    `runs` + 1 forward and backward passes, and memory for the activations of one part
/// Throws:  c10::ValueError if `runs` is below 1
std::vector<PartCost> measure_parts(const ModelParts& parts, const std::vector<at::Tensor>& inputs, int runs = 3);

/// Divides parts into stages such that the slowest stage is as fast as possible (dynamic programming).
/// Params:  stages – number of stages; max_parameter_bytes – limit for each stage, 0: none
/// Returns: the first part of each stage, in ascending order, such as {0, 4, 9}. Tied weights count in each part
/// Cost:    O(parts² · stages)
/// Throws:  c10::ValueError if there are fewer parts than stages, or if no division fits into the limit (the message
///          has the largest part)
std::vector<int> balance_stages(const std::vector<PartCost>& costs, int stages, int64_t max_parameter_bytes = 0);

/// Checks stages that were divided by hand.
/// Throws: c10::ValueError if `first_parts` does not start with 0 or does not ascend, or if a part does not exist. It
///         is also thrown if a stage has no parameters, or if a parameter belongs to no part (the message names it)
void check_stages(const ModelParts& parts, const std::vector<int>& first_parts);

}  // namespace bellows::parallel
