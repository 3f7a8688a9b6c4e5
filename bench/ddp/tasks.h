#pragma once

#include <functional>
#include <string>

#include "bellows/core/model.h"

namespace bellows::bench {

/// A model with formula weights, and this rank's part of a batch.
struct Task {
  std::function<Model()> make;  ///< creates a new model
  Model model;
  at::Tensor x, y;
  at::Tensor (*loss)(const at::Tensor& output, const at::Tensor& y);
};

/// Params: name – "resnet18" (32 images of 64x64 in total), "bert" (20 M parameters, 8 sequences of 128), or "mlp" (5 k parameters, too
///                small to benefit from several processes)
Task make_task(const std::string& name, int rank, int ranks);

}  // namespace bellows::bench
