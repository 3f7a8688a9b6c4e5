#include "bellows/data/formats/new_folder.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "bellows/core/error.h"

namespace bellows::data {

namespace {

namespace fs = std::filesystem;

}  // namespace

NewFolder::NewFolder(const std::string& path, std::string what) : what_(std::move(what)) {
  path_ = fs::path(path).lexically_normal();
  if (!path_.has_filename()) path_ = path_.parent_path();  // "folder/"
  std::error_code ignored;
  const bool free = !fs::exists(path_, ignored) || (fs::is_directory(path_, ignored) && fs::is_empty(path_, ignored));
  TORCH_CHECK_VALUE(free && path_.has_filename(), what_, ": ", path,
                    " already exists. Remove it, or choose another name.");
  std::string pattern = path_.string() + ".tmp-XXXXXX";
  TORCH_CHECK(::mkdtemp(pattern.data()), what_, ": cannot create a folder next to ", path, ": ", errno_message(errno),
              ". The parent folder must exist and be writable.");
  temporary_ = pattern;
  fs::permissions(temporary_,
                  fs::perms::group_read | fs::perms::group_exec | fs::perms::others_read | fs::perms::others_exec,
                  fs::perm_options::add, ignored);
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void NewFolder::add_folder(const std::string& name) const {
  std::error_code error;
  fs::create_directories(temporary_ / name, error);
  TORCH_CHECK(!error, what_, ": cannot create the folder ", (temporary_ / name).string(), ": ",
              errno_message(error.value()), ".");
}

void NewFolder::commit() {
  // Sync the content before the rename, so that after a power failure the name exists only with its content.
  TORCH_CHECK(sync_folder(temporary_, true), what_, ": cannot write ", temporary_.string(), ": ", errno_message(errno),
              ".");
  TORCH_CHECK(::rename(temporary_.c_str(), path_.c_str()) == 0, what_, ": cannot rename ", temporary_.string(), " to ",
              path_.string(), ": ", errno_message(errno), ".");
  temporary_.clear();
  const fs::path parent = path_.has_parent_path() ? path_.parent_path() : fs::path(".");
  sync_folder(parent, false);
}

bool sync_folder(const fs::path& folder, bool all_files) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool done = (all_files ? ::syncfs(fd) : ::fsync(fd)) == 0;
  return ::close(fd) == 0 && done;
}

bool stays_inside(std::string_view path) {
  for (;;) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part.empty() || part == "." || part == ".." || part.find('\0') != std::string_view::npos) return false;
    if (slash == std::string_view::npos) return true;
    path = path.substr(slash + 1);
  }
}

}  // namespace bellows::data
