#pragma once

// What the sources and sinks of CSV and JSON Lines share.

#include <cstddef>
#include <string>
#include <string_view>

#include "bellows/data/sample.h"
#include "bellows/system/file.h"
#include "bellows/system/write_state.h"

namespace bellows::data {

/// Pictures that a table names.
class PictureFolder {
 public:
  /// Params: folder – "": that of `table`
  PictureFolder(const std::string& folder, const std::string& table);
  /// Maps the file and adds it to `sample` as "image".
  /// Throws: c10::ValueError – `path` leads out of the folder, or cannot be read
  void add(std::string_view path, Sample& sample) const;

 private:
  std::string folder_;
};

/// A number as text: "3", "0.1"; "" for types that are none.
std::string number_text(c10::ScalarType dtype, const std::byte* value);

/// A text file that appears whole, written in large pieces.
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
