#pragma once

#include "bellows/core/model.h"

namespace bellows::models {

/// Returns the weight of a model's auxiliary outputs in the training loss: 0.3 for googlenet(), 0.4 for inception_v3(),
/// and 0 for models without auxiliary outputs.
///
/// Auxiliary outputs are logits of heads in the middle of a network, which bring gradients to its first layers. Such a
/// model returns them after its main output, and only in training mode. Losses of recipes (train/loss.h) include them:
/// ```
/// const std::vector<at::Tensor> outputs = model.forward_all({images});
/// at::Tensor loss = at::cross_entropy_loss(outputs[0], labels);
/// for (size_t i = 1; i < outputs.size(); ++i)
///   loss = loss + auxiliary_weight(model) * at::cross_entropy_loss(outputs[i], labels);
/// ```
double auxiliary_weight(const Model& model);

}  // namespace bellows::models
