#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "bellows/runtime/backend.h"

namespace bellows::runtime {

/// Sizes and values of example inputs.
struct ExampleSizes {
  int64_t batch_size = 1;  ///< for axis 0, if it may vary
  int64_t length = 0;      ///< for other axes that may vary; 0: 128, or 224 for inputs with four axes
  /// For axes with this name, or for one axis as "INPUT:AXIS". These sizes have priority.
  std::map<std::string, int64_t> sizes{};
  int64_t vocabulary = 1000;  ///< integers are random numbers from 0 to vocabulary - 1
};

/// Creates random inputs: normally distributed floating-point numbers, integers and booleans. The values depend only on
/// the arguments.
/// Throws: c10::ValueError if an input has no dtype, if a size is less than 1, or if `sizes` names an axis that no input
///         has (the message lists the axes)
std::vector<at::Tensor> example_inputs(std::span<const TensorInfo> inputs, const ExampleSizes& sizes = {});

}  // namespace bellows::runtime
