#pragma once

#include <string>

#include "bellows/core/model.h"
#include "bellows/io/bytes.h"
#include "bellows/io/tensors/pickle_value.h"

namespace bellows::io {

/// Loads a file that was written by Python's torch.save, in the zip format (since PyTorch 1.6) or the format before it.
///
/// No code in the file is executed. The function supports the values that torch.load(weights_only=True) allows in
/// practice: containers, numbers, text, tensors, parameters, dtypes, devices and torch.Size. Tensors are copied to the
/// CPU, regardless of their original device, and keep their strides. Tensors that shared storage share it again.
/// Checksums are verified, except in files without checksums (torch.serialization.set_crc32_options(False)).
/// Throws: c10::ValueError if the file is missing, truncated or corrupt, or if a class is not allowed (the message
///         names the class); if it is a TorchScript file or another kind of file (the message names the kind)
/// Ref:    torch.load(path, map_location="cpu", weights_only=True)
PickleValue torch_load(const std::string& path);
/// Like torch_load(), but reads from memory.
/// Params: where – name of the bytes for error messages
PickleValue torch_load_bytes(ByteSpan bytes, const std::string& where);

/// Writes a file that Python's torch.load(path) and torch_load() can read. The file appears under its name when it is
/// complete.
///
/// Like Python's torch.save, the function writes each storage once and completely. Views still share storage when they
/// are loaded. A small view of a large tensor is written with the complete storage; call clone() first to avoid this.
/// Cost:   one pass for the checksum and one pass to write. Only storages that are not on the CPU are copied, one at a
///         time
/// Throws: c10::ValueError for sparse, quantized and meta tensors, and if one storage is used with two dtypes;
///         c10::Error if writing fails
/// Ref:    torch.save
void torch_save(const std::string& path, const PickleValue& value);

/// Loads named tensors from a safetensors file or a torch.save file. The format is detected from the content, not from
/// the file name.
///
/// In a torch.save file, the function uses the top-level dict if all its values are tensors. Otherwise, it uses the
/// first such dict under "state_dict", "model_state_dict", "model" or "weights", which are common in training scripts.
/// Tensors are on the CPU and have the names in the file.
/// Throws: c10::ValueError under the same conditions as torch_load() and load_safetensors(). The function also throws
///         c10::ValueError if there is no such dict (the message lists the keys), or for any other kind of file (the
///         message names the kind)
NamedTensors load_tensors(const std::string& path);

}  // namespace bellows::io
