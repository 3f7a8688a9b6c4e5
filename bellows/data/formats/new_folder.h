#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace bellows::data {

/// A folder that appears under its name only when it is whole: it is filled as `NAME.tmp-aB3xYz` beside it and renamed
/// by commit(). Without commit(), nothing stays behind.
class NewFolder {
 public:
  /// Params: what – begins messages
  /// Throws: c10::ValueError – `path` is there already and not an empty folder; c10::Error – cannot be made
  NewFolder(const std::string& path, std::string what);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  /// Where a file of this name is to be written.
  std::string operator/(const std::string& name) const { return (temporary_ / name).string(); }
  /// Makes a folder inside, with those above it.
  void add_folder(const std::string& name) const;
  /// Puts the folder in place and on the disk.
  /// Throws: c10::Error – the name was taken meanwhile, or cannot be written to
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  std::string what_;
};

/// Writes a folder's names to the disk, or all that the system still holds of its file system. False: it could not.
bool sync_folder(const std::filesystem::path& folder, bool all_files);

/// A relative path whose parts are names: no "..", ".", nothing absolute, empty or with a NUL in it.
bool stays_inside(std::string_view path);

}  // namespace bellows::data
