#pragma once

#include <filesystem>
#include <string>

namespace bellows::export_detail {

/// A folder beside the target, in which exported files have their final names while they are checked. It is deleted with
/// everything that was not moved.
class UncheckedFolder {
 public:
  /// Params: caller – function of the user, for messages
  /// Throws: c10::Error if the folder cannot be created
  UncheckedFolder(const std::filesystem::path& target, const char* caller);
  ~UncheckedFolder();
  UncheckedFolder(const UncheckedFolder&) = delete;
  UncheckedFolder& operator=(const UncheckedFolder&) = delete;

  /// The path under which the target is written.
  std::string file() const { return folder_ / target_.filename(); }
  /// Moves the target, and before it the file with external data if there is one. Former files are replaced.
  void keep() const;

 private:
  const std::filesystem::path target_, folder_;
};

}  // namespace bellows::export_detail
