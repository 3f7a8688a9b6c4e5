#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bellows/io/archives/zip.h"
#include "bellows/system/file.h"

namespace bellows::models::exported {

/// An archive of torch.export.save. The file stays mapped, so that save_exported() can copy its records later.
/// Threads: thread-safe
class ExportedArchive {
 public:
  /// Checks the format and the checksums of all records.
  /// Throws: c10::ValueError if the file is missing, damaged, or another kind of file (the message names the kind)
  explicit ExportedArchive(const std::string& path);

  const std::string& path() const { return file_.path(); }
  /// Params:  record – its name without the root folder, such as "models/model.json"
  /// Returns: the content of the record
  /// Throws:  c10::ValueError if there is no such record
  io::ByteSpan bytes(const std::string& record) const;
  std::string_view text(const std::string& record) const { return io::as_text(bytes(record)); }
  bool has(const std::string& record) const { return zip_.find(root_ + record) != nullptr; }
  const std::vector<io::ZipEntry>& entries() const { return zip_.entries(); }
  /// The folder in which all records are, with a slash.
  const std::string& root() const { return root_; }
  /// Names of the programs.
  std::vector<std::string> programs() const;

 private:
  void check_kind() const;

  const MappedFile file_;
  const io::ZipReader zip_;
  std::string root_;
};

}  // namespace bellows::models::exported
