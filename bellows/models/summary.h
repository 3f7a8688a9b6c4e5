#pragma once

#include <c10/util/ArrayRef.h>

#include <string>

#include "bellows/core/model.h"

namespace bellows {

/// A table of the model's modules: name, type, output shape, parameters, bytes; then totals. Lines of at most 80
/// columns.
/// Params:   input_sizes – runs one forward pass on zeros of these sizes, without gradients and in eval mode, to find
///           the output shapes of the modules that hold parameters; empty: no pass, no shapes
/// Cost:     the forward pass
/// Throws:   what the model throws for such an input; its training mode is put back
/// Ref:      torchinfo.summary
std::string summary(const Model& model, c10::IntArrayRef input_sizes = {});

}  // namespace bellows
