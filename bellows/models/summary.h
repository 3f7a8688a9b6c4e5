#pragma once

#include <c10/util/ArrayRef.h>

#include <string>

#include "bellows/core/model.h"

namespace bellows {

/// Returns a table of the model's modules with name, type, output shape, number of parameters and bytes, followed by
/// totals. Lines have at most 80 columns.
/// Params: input_sizes – if not empty, one forward pass on zeros of these sizes finds the output shapes of modules with
///                       parameters. The pass runs without gradients and in evaluation mode
/// Cost:   the forward pass
/// Throws: exceptions from the model for such an input; the training mode is restored first
/// Ref:    torchinfo.summary
std::string summary(const Model& model, c10::IntArrayRef input_sizes = {});

/// Returns the same table for a model with several inputs, or with an input that is not floating point.
/// Params: inputs – the inputs of the forward pass by name, for example {{"left", a}, {"right", b}}
std::string summary(const Model& model, const NamedTensors& inputs);

}  // namespace bellows
