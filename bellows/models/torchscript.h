#pragma once

#include <string>

#include "bellows/core/model.h"
#include "bellows/models/registry.h"

namespace bellows::models {

/// Loads a TorchScript program that `torch.jit.script(net).save("net.pt")` has written. You can train, evaluate, save
/// and restore the model like any other model. Parameters, buffers and modules keep their names. The program is loaded
/// onto the CPU, even if it was saved from another device. Prefer scripting to tracing, because a trace stays in the
/// training or evaluation mode in which it was recorded.
///
/// The model's inputs are the parameters of the program's `forward`, with their names. Parameters with a default value
/// are optional inputs. If `forward` returns a tuple of tensors, the outputs are named "output_0", "output_1", …. The
/// outputs of a named tuple have the names of its fields.
/// Numerics: bit-identical to calling the operators directly. TorchScript's own optimizer is off, because it would
///           change results after the first calls (tests/models/torchscript_test.cpp)
/// Threads:  several threads may call forward at the same time if the program's forward allows it
/// Throws:   c10::ValueError if the file does not exist, is damaged or does not contain TorchScript. In forward,
///           exceptions of the program are passed on, and c10::ValueError is thrown if the program does not return
///           tensors
/// Ref:      torch.jit.load
Model load_torchscript(const std::string& path);

/// Creates a model entry from the file. `make` loads the file again, so that each run starts from the file's weights.
/// It checks that the model can be trained. In forward, the model checks that the program returns `num_classes` logits
/// per sample.
/// Throws: c10::ValueError like load_torchscript()
ModelEntry torchscript_entry(const std::string& path);

/// Returns whether `name` names a TorchScript file. This is the case if it has a slash or ends in .pt, .pth, .ts or
/// .torchscript, and does not end in .json or .pt2.
bool is_torchscript_path(const std::string& name);

}  // namespace bellows::models
