#pragma once

#include <string>

#include "bellows/core/model.h"
#include "bellows/models/registry.h"

namespace bellows::models {

/// Loads a TorchScript program, as written by `torch.jit.script(net).save("net.pt")`. The model can be trained,
/// evaluated, saved and restored like any other; parameters, buffers and modules keep their names. It is loaded onto
/// the CPU, from whatever device it was saved. Prefer scripting to tracing, because a trace stays in the training or
/// evaluation mode in which it was recorded.
///
/// Inputs are the parameters of the program's `forward`, by name; those with a default value are optional. A tuple of
/// tensors gives the outputs "output_0", "output_1", …; a named tuple gives outputs with its names.
/// Numerics: bit-identical to calling the operators directly. TorchScript's own optimizer is off, because it would
///           change results after the first calls (tests/models/torchscript_test.cpp)
/// Threads:  forward from several threads is safe if the program's forward is
/// Throws:   c10::ValueError if the file does not exist, is damaged or does not contain TorchScript; in forward,
///           exceptions of the program, or if it returns anything else than tensors
/// Ref:      torch.jit.load
Model load_torchscript(const std::string& path);

/// Creates a model entry from the file. `make` loads the file again, so that each run starts from the file's weights.
/// It checks that the model can be trained and returns `num_classes` logits per sample.
/// Throws: c10::ValueError like load_torchscript()
ModelEntry torchscript_entry(const std::string& path);

/// Whether `name` can only be a file: it has a slash or ends in .pt, .pth, .ts or .torchscript.
bool is_torchscript_path(const std::string& name);

}  // namespace bellows::models
