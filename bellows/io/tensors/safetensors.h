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

/// A safetensors file, opened: the header is read and checked, tensors are read when they are asked for.
/// Threads: safe from all threads.
class SafetensorsFile {
 public:
  /// Throws: c10::ValueError – missing, truncated, corrupt, or another kind of file: path, byte offset, expected, found
  explicit SafetensorsFile(const std::string& path);

  /// In the order of the data in the file.
  const std::vector<SafetensorsEntry>& entries() const { return header_.entries; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }
  /// The tensor's bytes in the mapped file, row-major; valid as long as this object lives.
  /// Throws: c10::ValueError – the file was cut short since it was opened; so do both tensor()
  ByteSpan bytes(const SafetensorsEntry& entry) const;
  /// A copy in memory of its own: it does not refer to the file, and may be written to.
  at::Tensor tensor(const SafetensorsEntry& entry) const;
  /// Throws: c10::ValueError – no such tensor; names the nearest one
  at::Tensor tensor(std::string_view name) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
};

/// Throws: c10::ValueError – libtorch has no such dtype; the text begins with `where`
c10::ScalarType safetensors_dtype(const SafetensorsEntry& entry, const std::string& where);
/// The format's name of a dtype: "F32"; "" where it has none.
std::string_view safetensors_dtype_name(c10::ScalarType dtype);

/// All tensors of a file, on the CPU, in the order of the file; each a copy of its own (see SafetensorsFile to read
/// only some). Tensors that save_safetensors noted as channels-last come back channels-last.
/// Throws:   c10::ValueError – as SafetensorsFile; a dtype that libtorch lacks
/// Ref:      safetensors.torch.load_file
NamedTensors load_safetensors(const std::string& path);

struct SafetensorsOptions {
  SafetensorsMetadata metadata = {};  ///< text by name; kept in this order
  /// The format knows row-major data only. Note in the metadata (key "bellows.memory_format") which tensors were
  /// channels-last; other readers ignore it. Files without such tensors carry no note.
  bool keep_memory_format = true;
};

/// Writes a file that appears under its name only when it is whole. Layout and order are the official writer's: by
/// dtype, then by name.
/// Params:   tensors – any strides and device; each is written as a dense row-major tensor of its own, shared storage
///           is not kept
/// Cost:     one temporary copy of each tensor that is not contiguous on the CPU, one at a time
/// Throws:   c10::ValueError – a name twice, "__metadata__" as a name, a dtype or layout that the format lacks;
///           c10::Error – cannot be written
/// Ref:      safetensors.torch.save_file
void save_safetensors(const std::string& path, const NamedTensors& tensors, const SafetensorsOptions& options = {});

}  // namespace bellows::io
