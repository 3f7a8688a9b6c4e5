#pragma once

#include <c10/util/ArrayRef.h>

#include <string>

#include "bellows/core/model.h"

namespace bellows {

/// A table of the model's modules with name, type, output shape, parameters and bytes, followed by totals. Lines have
/// at most 80 columns.
/// Params:   input_sizes – if not empty, runs one forward pass on zeros of these sizes, without gradients and in
///                         evaluation mode, to find the output shapes of modules with parameters
/// Cost:     the forward pass
/// Throws:   exceptions of the model for such an input; its training mode is restored
/// Ref:      torchinfo.summary
std::string summary(const Model& model, c10::IntArrayRef input_sizes = {});

}  // namespace bellows
