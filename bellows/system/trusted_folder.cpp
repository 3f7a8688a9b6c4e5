#include "bellows/system/trusted_folder.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "bellows/core/error.h"

namespace bellows {
namespace {

namespace fs = std::filesystem;

constexpr mode_t others_may_write = S_IWGRP | S_IWOTH;

bool is_of_this_user(const struct stat& status) {
  return status.st_uid == ::geteuid();
}

/// Checks one folder. In a sticky folder, other users cannot replace files of this user.
std::string distrust_of(const fs::path& folder, const struct stat& status) {
  if (!is_of_this_user(status) && status.st_uid != 0)
    return c10::str(folder.string(), " belongs to user ", status.st_uid, ", but this process runs as user ",
                    ::geteuid(), ". Set BELLOWS_CACHE to a folder that belongs to you.");
  if (is_trusted(status) || (status.st_mode & S_ISVTX)) return "";
  return c10::str("other users can write to the folder ", folder.string(), ". Run: chmod go-w '", folder.string(), "'");
}

void make_private_path(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) return;
  if (errno == ENOENT && folder.has_relative_path()) {
    make_private_path(folder.parent_path());
    if (::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) return;
  }
  TORCH_CHECK(false, "cannot create the folder ", folder.string(), ": ", errno_message(errno), ".");
}

fs::path absolute_path(const std::string& folder) {
  fs::path path = fs::absolute(folder).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

bool is_trusted(const struct stat& status) {
  return (is_of_this_user(status) || status.st_uid == 0) && !(status.st_mode & others_may_write);
}

std::string distrust_of(const std::string& folder) {
  std::error_code error;
  fs::path path = fs::canonical(folder, error);
  if (error) return c10::str("cannot open the folder ", folder, ": ", errno_message(error.value()), ".");
  for (bool parent = false;; parent = true) {
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0)
      return c10::str("cannot examine ", path.string(), ": ", errno_message(errno), ".");
    if (std::string why = distrust_of(path, status); !why.empty()) return why;
    const bool protects = (is_of_this_user(status) && is_trusted(status)) || (status.st_mode & S_ISVTX);
    if ((parent && protects) || !path.has_relative_path()) return "";
    path = path.parent_path();
  }
}

void make_private_folder(const std::string& folder) {
  make_private_path(absolute_path(folder));
}

void make_trusted_folder(const std::string& folder) {
  const fs::path path = absolute_path(folder);
  make_private_path(path);
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  struct stat status {};
  if (fd >= 0 && ::fstat(fd, &status) == 0 && is_of_this_user(status) && (status.st_mode & others_may_write))
    ::fchmod(fd, 0700);
  if (fd >= 0) ::close(fd);
  const std::string why = distrust_of(folder);
  TORCH_CHECK(why.empty(), why);
}

}  // namespace bellows
