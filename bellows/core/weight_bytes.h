#pragma once

#include <cstdint>

#include "bellows/core/model.h"

namespace bellows {

/// Returns the size of a model's parameters and buffers in bytes. Tensors that share all of their memory are counted once.
int64_t weight_bytes(const Model& model);

}  // namespace bellows
