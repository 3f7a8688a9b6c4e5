#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/runtime/backend.h"

namespace bellows::runtime {

/// Runs a program without gradients.
using ScriptForward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;
/// Returns the function that runs a TorchScript program. The model is in evaluation mode.
using MakeScriptForward = std::function<ScriptForward(const Model& model, const LoadOptions& options)>;

/// Creates a back end for TorchScript files and programs of torch.export, which supports autocast. It states only the names of inputs and outputs. Inputs
/// with a default value may be left out. If an operator of a program fails, the error is a c10::ValueError with the sizes of
/// the inputs.
std::unique_ptr<InferenceBackend> make_script_backend(std::string name, std::string version, MakeScriptForward forward);

}  // namespace bellows::runtime
