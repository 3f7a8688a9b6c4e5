#include "bellows/system/unlinked_temp_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include "bellows/core/error.h"

namespace bellows {

namespace {

std::string temporary_folder() {
  const char* temporary = std::getenv("TMPDIR");
  return temporary && *temporary ? temporary : "/tmp";
}

/// The shell's `ulimit -f`. If a file grows beyond it, the system kills the process.
int64_t file_size_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return INT64_MAX;
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT64_MAX));
}

int64_t available_bytes(int fd) {
  struct statvfs disk {};
  if (::fstatvfs(fd, &disk) != 0) return INT64_MAX;
  return static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
}

/// Returns 0 or errno.
int allocate_on_disk(int fd, int64_t begin, int64_t end) {
  int error = 0;
  do {
    error = ::fallocate(fd, 0, begin, end - begin) == 0 ? 0 : errno;
  } while (error == EINTR);
  return error;
}

}  // namespace

UnlinkedTempFile::UnlinkedTempFile(std::string folder, std::string user)
    : folder_(folder.empty() ? temporary_folder() : std::move(folder)), user_(std::move(user)) {
  fd_ = ::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
  if (fd_ >= 0) return;
  const int first_error = errno;
  if (first_error == EOPNOTSUPP || first_error == EISDIR) {  // a file system without O_TMPFILE
    std::string name = folder_ + "/bellows-XXXXXX";
    fd_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd_ >= 0) {
      ::unlink(name.c_str());
      return;
    }
  }
  TORCH_CHECK(false, user_, ": cannot create a file in ", folder_, ": ", errno_message(first_error),
              ". Choose an existing folder that you can write to.");
}

UnlinkedTempFile::~UnlinkedTempFile() {
  ::close(fd_);
}

void UnlinkedTempFile::grow(int64_t end, const std::string& advice) {
  const int64_t more = end - size_, limit = file_size_limit();
  if (more <= 0) return;
  TORCH_CHECK(end <= limit, user_, ": the file needs ", end, " bytes, but the file size limit of this process is ",
              limit, " (ulimit -f). Raise the limit. ", advice);
  const int64_t available = available_bytes(fd_);
  int error = available < more ? ENOSPC : allocate_on_disk(fd_, size_, end);
  if (error == EOPNOTSUPP) {  // a file system without preallocation: only its free space was checked
    error = ::ftruncate(fd_, end) == 0 ? 0 : errno;
    promised_ = false;
  }
  check_room(error, more, advice);
  size_ = end;
}

void UnlinkedTempFile::fill(int64_t begin, const std::string& advice) {
  if (promised_) return;
  const std::vector<char> zeros(1 << 20);
  while (begin < size_) {
    const auto count = std::min(static_cast<size_t>(size_ - begin), zeros.size());
    const ssize_t written = ::pwrite(fd_, zeros.data(), count, begin);
    if (written < 0 && errno == EINTR) continue;
    check_room(written > 0 ? 0 : written < 0 ? errno : ENOSPC, size_ - begin, advice);
    begin += written;
  }
}

void UnlinkedTempFile::check_room(int error, int64_t more, const std::string& advice) const {
  TORCH_CHECK(error == 0, user_, ": cannot allocate ", more, " more bytes on the disk of ", folder_, ": ",
              errno_message(error), "; ", available_bytes(fd_), " bytes are available there, and this process uses ",
              size_, ". Free some space, or choose a folder on a larger disk. ", advice);
}

bool UnlinkedTempFile::has_plenty(int64_t end) const {
  return end <= file_size_limit() && end - size_ < available_bytes(fd_) / 2;
}

}  // namespace bellows
