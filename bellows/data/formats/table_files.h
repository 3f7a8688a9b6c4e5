#pragma once

// Shared code of the sources and sinks for CSV and JSON Lines.

#include <cstddef>
#include <string>
#include <string_view>

#include "bellows/data/sample.h"
#include "bellows/system/file.h"
#include "bellows/system/write_state.h"

namespace bellows::data {

/// Reads images whose paths are in a table.
class PictureFolder {
 public:
  /// Params: folder – base folder of the paths; "": the folder of the file `table`
  PictureFolder(const std::string& folder, const std::string& table);
  /// Maps an image file and adds it to `sample` as "image".
  /// Throws: c10::ValueError if `path` leads out of the folder or cannot be read
  void add(std::string_view path, Sample& sample) const;

 private:
  std::string folder_;
};

/// Returns a number as text, such as "3" or "0.1". Returns "" for unsupported types.
std::string number_text(c10::ScalarType dtype, const std::byte* value);

/// Writes a text file in large chunks. The file appears under its name when commit() is called.
class TextWriter {
 public:
  explicit TextWriter(const std::string& path) : file_(path) {}
  void write(std::string_view text);
  void commit();

 private:
  AtomicFile file_;
  WriteState state_;
  std::string waiting_;
};

}  // namespace bellows::data
