#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/io/bytes.h"
#include "bellows/io/tensors/safetensors_header.h"
#include "bellows/system/file.h"

namespace bellows::io {

/// An open safetensors file. Opening reads and checks the header; tensors are read on request.
/// Threads: thread-safe
class SafetensorsFile {
 public:
  /// Throws: c10::ValueError if the file is missing, truncated, corrupt or of another kind; the message names the path
  ///         and the byte offset, what was expected and what was found
  explicit SafetensorsFile(const std::string& path);

  /// In the order of the data in the file.
  const std::vector<SafetensorsEntry>& entries() const { return header_.entries; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }
  /// The tensor's bytes in the mapped file, row-major; valid as long as this object exists.
  /// Throws: c10::ValueError if the file was truncated after it was opened; so do both tensor() functions
  ByteSpan bytes(const SafetensorsEntry& entry) const;
  /// Returns a writable copy that is independent of the file.
  at::Tensor tensor(const SafetensorsEntry& entry) const;
  /// Throws: c10::ValueError if there is no such tensor (the message suggests the nearest name)
  at::Tensor tensor(std::string_view name) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
};

/// Throws: c10::ValueError if libtorch does not have the dtype; the message starts with `where`
c10::ScalarType safetensors_dtype(const SafetensorsEntry& entry, const std::string& where);
/// The format's name of a dtype: "F32"; "" if it has none.
std::string_view safetensors_dtype_name(c10::ScalarType dtype);

/// Loads copies of all tensors of a file to the CPU, in the order of the file. To read only some, see SafetensorsFile.
/// Tensors that save_safetensors recorded as channels-last are restored as channels-last.
/// Throws: c10::ValueError as SafetensorsFile, or if libtorch does not have a dtype
/// Ref:    safetensors.torch.load_file
NamedTensors load_safetensors(const std::string& path);

struct SafetensorsOptions {
  SafetensorsMetadata metadata = {};  ///< text by name; the order is kept
  /// The format supports only row-major data. If true, records in the metadata (key "bellows.memory_format") which
  /// tensors were channels-last; other readers ignore it. Files without such tensors have no such entry.
  bool keep_memory_format = true;
};

/// Writes a file that appears under its name when it is complete. Layout and order are the official writer's: by dtype,
/// then by name.
/// Params: tensors – any strides and device; each is written as a separate dense row-major tensor, and shared storage
///         is not kept
/// Cost:   one temporary copy of each tensor that is not contiguous on the CPU, one at a time
/// Throws: c10::ValueError if a name occurs twice or is "__metadata__", or if the format does not support a dtype or
///         layout; c10::Error if writing fails
/// Ref:    safetensors.torch.save_file
void save_safetensors(const std::string& path, const NamedTensors& tensors, const SafetensorsOptions& options = {});

}  // namespace bellows::io
