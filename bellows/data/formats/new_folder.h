#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace bellows::data {

/// A folder that appears under its name only when it is complete. Files are written to a folder `NAME.tmp-aB3xYz` in
/// the same parent folder, and commit() renames this folder. Without commit(), the destructor removes it.
class NewFolder {
 public:
  /// Params: what – prefix of error messages
  /// Throws: c10::ValueError if `path` exists and is not an empty folder; c10::Error if the folder cannot be created
  NewFolder(const std::string& path, std::string what);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  /// Returns the path at which to write the file `name`.
  std::string operator/(const std::string& name) const { return (temporary_ / name).string(); }
  /// Creates a subfolder and its parents.
  void add_folder(const std::string& name) const;
  /// Moves the folder into place and syncs it to disk.
  /// Throws: c10::Error if another process has created `path`, or if writing fails
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  std::string what_;
};

/// Syncs the entries of a folder to disk. With `all_files`, syncs all pending writes of the file system. Returns false
/// on failure.
bool sync_folder(const std::filesystem::path& folder, bool all_files);

/// Returns true for a relative path that cannot lead out of a folder. The path must have no NUL characters and no parts
/// that are empty, "." or "..".
bool stays_inside(std::string_view path);

}  // namespace bellows::data
