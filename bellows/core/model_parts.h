#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows {

/// A part of a model that maps one tensor to one tensor, such as the embeddings, a transformer layer or the head.
struct ModelPart {
  std::string name;
  /// The parameters and buffers that the part reads. Tied weights belong to several parts.
  std::vector<at::Tensor> tensors;
  /// Computes the part's output. The model must exist as long as the function is called.
  /// Params: x – output of the previous part; undefined for the first part
  ///         inputs – inputs of the model, such as token ids, from which a part may also compute a mask
  std::function<at::Tensor(const at::Tensor& x, const std::vector<at::Tensor>& inputs)> run;
};

/// A model as a sequence of parts. Running all parts in order computes the model's output.
struct ModelParts {
  Model model;
  std::vector<ModelPart> parts;
};

}  // namespace bellows
