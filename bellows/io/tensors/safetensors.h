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

/// An open safetensors file. The constructor reads and checks the header. Tensors are read on request.
/// Threads: thread-safe
class SafetensorsFile {
 public:
  /// Throws: c10::ValueError if the file is missing, truncated, corrupt or not a safetensors file (the message states
  ///         the path, the byte offset, and the expected and actual content)
  explicit SafetensorsFile(const std::string& path);

  /// The tensors in the order of their data in the file.
  const std::vector<SafetensorsEntry>& entries() const { return header_.entries; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }
  /// Returns the bytes of a tensor in the mapped file, in row-major order. They are valid while this object exists.
  /// Throws: c10::ValueError if the file was truncated after it was opened. The two tensor() functions also throw this
  ///         exception
  ByteSpan bytes(const SafetensorsEntry& entry) const;
  /// Returns a writable copy that is independent of the file.
  at::Tensor tensor(const SafetensorsEntry& entry) const;
  /// Throws: c10::ValueError if there is no such tensor (the message suggests the nearest name)
  at::Tensor tensor(std::string_view name) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
};

/// Throws: c10::ValueError if libtorch does not support the dtype (the message starts with `where`)
c10::ScalarType safetensors_dtype(const SafetensorsEntry& entry, const std::string& where);
/// Returns the format's name for a dtype ("F32"), or "" if the format does not support the dtype.
std::string_view safetensors_dtype_name(c10::ScalarType dtype);

/// Loads copies of all tensors of a file to the CPU, in the order of the file. To read only some tensors, use
/// SafetensorsFile. Tensors that save_safetensors() recorded as channels-last are channels-last again.
/// Throws: c10::ValueError under the same conditions as SafetensorsFile, or if libtorch does not support the dtype of a
///         tensor
/// Ref:    safetensors.torch.load_file
NamedTensors load_safetensors(const std::string& path);

struct SafetensorsOptions {
  SafetensorsMetadata metadata = {};  ///< texts by name; the order is kept
  /// The format supports only row-major data. If true, the metadata (key "bellows.memory_format") records which tensors
  /// were channels-last. Other readers ignore this entry. Files without such tensors do not have the entry.
  bool keep_memory_format = true;
};

/// Writes a safetensors file. It appears under its name when it is complete. Layout and order are those of the official
/// writer: tensors are sorted by dtype, then by name.
/// Params: tensors – with any strides, on any device. Each tensor is written separately as dense row-major data, even
///         if tensors share storage
/// Cost:   one temporary copy of each tensor that is not contiguous on the CPU, one tensor at a time
/// Throws: c10::ValueError if a name occurs twice or is "__metadata__", or if the format does not support a dtype or
///         layout. c10::Error if writing fails
/// Ref:    safetensors.torch.save_file
void save_safetensors(const std::string& path, const NamedTensors& tensors, const SafetensorsOptions& options = {});

}  // namespace bellows::io
