#pragma once

#include <string>

#include "bellows/core/model.h"
#include "bellows/io/bytes.h"
#include "bellows/io/tensors/pickle_value.h"

namespace bellows::io {

/// Loads a file written by Python's torch.save (the zip format, since PyTorch 1.6).
///
/// Nothing in the file is executed. Supports the values that torch.load(weights_only=True) allows in practice:
/// containers, numbers, text, tensors, parameters, dtypes, devices, torch.Size. Tensors are copied to the CPU,
/// regardless of their original device, and keep their strides; tensors that shared storage share it again. Checksums
/// are verified, except in files without any (torch.serialization.set_crc32_options(False)).
/// Throws: c10::ValueError if the file is missing, truncated or corrupt; if a class is not allowed (the message names
///         it); for TorchScript, the format before 1.6 and other kinds of files (the message names the kind)
/// Ref:    torch.load(path, map_location="cpu", weights_only=True)
PickleValue torch_load(const std::string& path);
/// Like torch_load(), from memory.
/// Params: where – names the bytes in errors
PickleValue torch_load_bytes(ByteSpan bytes, const std::string& where);

/// Writes a file for Python's torch.load(path) and for torch_load(). It appears under its name when it is complete.
///
/// Like Python's torch.save, it writes each storage once, as a whole. Views stay shared, and a small view of a large
/// tensor is written with its entire storage; clone() it first to avoid this.
/// Cost:   one pass for the checksum, one to write; copies only storages that are not on the CPU, one at a time
/// Throws: c10::ValueError for sparse, quantized and meta tensors, and if one storage is used with two dtypes;
///         c10::Error if writing fails
/// Ref:    torch.save
void torch_save(const std::string& path, const PickleValue& value);

/// Loads named tensors from a safetensors file or a torch.save file. The format is detected from the content, not from
/// the file name.
///
/// In a torch.save file, these are the entries of the top-level dict if all its values are tensors. Otherwise, they are
/// those of the first such dict under "state_dict", "model_state_dict", "model" or "weights", as training scripts write
/// it. Tensors are on the CPU and have the names in the file.
/// Throws: c10::ValueError as torch_load and load_safetensors; if there is no such dict (the message lists the keys);
///         for any other kind of file (the message names it)
NamedTensors load_tensors(const std::string& path);

}  // namespace bellows::io
