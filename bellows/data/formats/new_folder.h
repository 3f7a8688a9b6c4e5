#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace bellows::data {

/// A folder that appears under its name only when it is complete. It is filled as `NAME.tmp-aB3xYz` next to the final
/// location and renamed by commit(). Without commit(), it is removed.
class NewFolder {
 public:
  /// Params: what – prefix of error messages
  /// Throws: c10::ValueError if `path` exists and is not an empty folder; c10::Error if the folder cannot be created
  NewFolder(const std::string& path, std::string what);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  /// The path at which to write a file of this name.
  std::string operator/(const std::string& name) const { return (temporary_ / name).string(); }
  /// Creates a folder inside, including its parents.
  void add_folder(const std::string& name) const;
  /// Moves the folder into place and syncs it to the disk.
  /// Throws: c10::Error if the name was taken in the meantime or if writing fails
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  std::string what_;
};

/// Syncs a folder's entries to the disk, or all pending writes of its file system. Returns false on failure.
bool sync_folder(const std::filesystem::path& folder, bool all_files);

/// True for a non-empty relative path without the parts ".." and "." and without NUL characters.
bool stays_inside(std::string_view path);

}  // namespace bellows::data
