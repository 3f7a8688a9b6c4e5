#pragma once

#include <string>

#include "bellows/core/model.h"
#include "bellows/io/bytes.h"
#include "bellows/io/tensors/pickle_value.h"

namespace bellows::io {

/// Reads a file that Python's torch.save wrote (the zip format, since PyTorch 1.6).
///
/// Nothing in the file is executed. Understood is what torch.load(weights_only=True) allows in practice: containers,
/// numbers, text, tensors, parameters, dtypes, devices, torch.Size. Tensors arrive on the CPU whatever device they
/// were saved from, in memory of their own, with their strides; tensors that shared storage share it again. Checksums
/// are verified; only a file without any (torch.serialization.set_crc32_options(False)) is taken without.
/// Throws:   c10::ValueError – missing, truncated, corrupt; a class that is not allowed (named); TorchScript, the
///           format before 1.6, and other kinds of file (named)
/// Ref:      torch.load(path, map_location="cpu", weights_only=True)
PickleValue torch_load(const std::string& path);
/// The same from memory.
/// Params:   where – names the bytes in errors
PickleValue torch_load_bytes(ByteSpan bytes, const std::string& where);

/// Writes a file that Python reads with torch.load(path), and C++ with torch_load. It appears under its name only
/// when it is whole.
///
/// As Python's torch.save, it writes whole storages, once each: views keep sharing, and a small view of a large
/// tensor is written with all of its storage (clone() it first if that is not wanted).
/// Cost:     one pass for the checksum, one to write; a copy only of what is not on the CPU, one storage at a time
/// Throws:   c10::ValueError – sparse, quantized, meta tensors; one storage under two dtypes; c10::Error – cannot be
///           written
/// Ref:      torch.save
void torch_save(const std::string& path, const PickleValue& value);

/// Named tensors from a safetensors file or a torch.save file, told apart by content, not by name.
///
/// From torch.save: the top-level dict if all its values are tensors; otherwise the one such dict under "state_dict",
/// "model_state_dict", "model" or "weights", as training scripts write it. Tensors are on the CPU, with the names of
/// the file.
/// Throws:   c10::ValueError – as torch_load and load_safetensors; no such dict (lists the keys); any other kind of
///           file (says which)
NamedTensors load_tensors(const std::string& path);

}  // namespace bellows::io
