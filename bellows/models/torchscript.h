#pragma once

#include <string>

#include "bellows/core/model.h"
#include "bellows/models/registry.h"

namespace bellows::models {

/// A TorchScript program as a model: what `torch.jit.script(net).save("net.pt")` writes. It trains, evaluates, is saved
/// and restored like any other; parameters, buffers and modules keep their names. It arrives on the CPU, whatever device
/// it was saved from. Prefer script to trace: a trace stays in the mode, training or evaluation, in which it was
/// recorded.
/// Shapes:   as the program's `forward`: one tensor in, one tensor out
/// Numerics: bit for bit the same operators called directly: TorchScript's own optimizer, which changes bits after the
///           first calls, stays off (tests/models/torchscript_test.cpp)
/// Threads:  forward from several threads is safe if the program's is
/// Throws:   c10::ValueError – no such file, no TorchScript in it, damage; in forward, what the program throws, or
///           that it gave something else than a tensor
/// Ref:      torch.jit.load
Model load_torchscript(const std::string& path);

/// The file as an entry: `make` loads it anew, so that each run starts from the file's weights, and checks that it can
/// be trained and gives `num_classes` scores a sample.
/// Throws: c10::ValueError – as load_torchscript()
ModelEntry torchscript_entry(const std::string& path);

/// Whether `name` can only mean a file: it has a slash or ends in .pt, .pth, .ts or .torchscript.
bool is_torchscript_path(const std::string& name);

}  // namespace bellows::models
