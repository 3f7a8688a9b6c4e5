#pragma once

#include <functional>
#include <string>

#include "bellows/core/model.h"

namespace bellows::bench {

/// A model with formula weights, and this rank's part of a batch.
struct Task {
  std::function<Model()> make;  ///< the model anew
  Model model;
  at::Tensor x, y;
  at::Tensor (*loss)(const at::Tensor& output, const at::Tensor& y);
};

/// Params: name – "resnet18" (32 pictures of 64x64 in all), "bert" (20 M parameters, 8 sequences of 128), "mlp" (5 k: too
///         small for many processes)
Task make_task(const std::string& name, int rank, int ranks);

}  // namespace bellows::bench
