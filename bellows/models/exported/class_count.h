#pragma once

#include <string>

#include "bellows/core/model.h"

namespace bellows::models {

/// Returns a model that checks the number of logits, before a loss function fails with a message that is hard to
/// understand. It also checks at once that the model can be trained.
/// Params: kind – of the program, for messages, such as "TorchScript model"
/// Throws: c10::ValueError if no parameter requires gradients (the message ends with `advice`). In forward,
///         c10::ValueError if the first output is not [batch, classes, …]
Model with_class_count(const Model& program, int64_t classes, const std::string& kind, const std::string& advice);

}  // namespace bellows::models
