#pragma once

#include <string>

#include "bellows/io/bytes.h"
#include "bellows/io/tensors/pickle_value.h"

namespace bellows::io {

/// Returns whether the bytes begin like a file of torch.save in the format before PyTorch 1.6.
bool is_legacy_torch_file(ByteSpan bytes);

/// Loads a file of torch.save in the format before PyTorch 1.6: pickles, followed by the storages. torch_load() calls
/// it. Many weight files of torchvision have this format, such as those of VGG.
/// Params: where – name of the bytes for error messages
/// Throws: c10::ValueError under the same conditions as torch_load(). Also if the file contains a pickled module
///         instead of its state dict, or comes from a big-endian machine
/// Ref:    torch.serialization._legacy_load
PickleValue legacy_torch_load(ByteSpan bytes, const std::string& where);

}  // namespace bellows::io
