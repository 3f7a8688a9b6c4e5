#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "bellows/io/tensors/safetensors.h"
#include "bellows/parallel/placement/streamed_weights.h"
#include "bellows/tap/skip_initialization.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

namespace bellows::parallel::testing {

/// Saves each tensor of a model once.
inline void save_weights(const Model& model, const std::string& path) {
  NamedTensors tensors;
  for (const auto& [name, tensor] : model.state_dict()) tensors.emplace_back(name, tensor.detach());
  io::save_safetensors(path, tensors);
}

inline int64_t bytes_of_weights(const Model& model) {
  int64_t bytes = 0;
  for (const WeightSize& weight : weight_sizes(model)) bytes += weight.bytes;
  return bytes;
}

/// Blocks of equal size, `layers` · (width² + width) numbers.
inline Model linear_stack(int64_t layers, int64_t width) {
  torch::nn::Sequential net;
  for (int64_t layer = 0; layer < layers; ++layer) net->push_back(torch::nn::Linear(width, width));
  net->eval();
  return Model::of(net, "stack");
}

inline int64_t layer_bytes(int64_t width) {
  return 4 * (width * width + width);  // a multiple of 64 if the width is one of 16
}

}  // namespace bellows::parallel::testing
