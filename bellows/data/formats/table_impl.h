#pragma once

// What the sources and sinks of CSV and JSON Lines share.

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "bellows/core/file.h"
#include "bellows/core/write_state_impl.h"
#include "bellows/data/sample.h"

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

/// Names of the columns of JSON Lines: true where a number under that name is not a 64-bit integer.
using JsonColumns = std::map<std::string, bool, std::less<>>;

/// Checks a line and notes its columns.
/// Throws: c10::ValueError – `where` and what is wrong
void learn_json_record(std::string_view line, const std::function<std::string()>& where, JsonColumns& columns);

/// Fills the sample's fields and key from a line.
/// Throws: as learn_json_record
void read_json_record(std::string_view line, const std::function<std::string()>& where, const JsonColumns& columns,
                      Sample& sample);

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
