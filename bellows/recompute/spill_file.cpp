#include "bellows/recompute/spill_file_impl.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "bellows/core/error.h"

namespace bellows::recompute::detail {

namespace {

constexpr int64_t page_bytes = 4096;
constexpr int64_t growth_bytes = 64 << 20;

int64_t whole_pages(int64_t bytes) {
  const int64_t pages = bytes / page_bytes + (bytes % page_bytes > 0 ? 1 : 0);
  return std::min(pages, INT64_MAX / page_bytes) * page_bytes;
}

/// The shell's `ulimit -f`. Beyond it the system kills the process, rather than to say so.
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

/// 0 or the system's error number.
int allocate_on_disk(int fd, int64_t begin, int64_t end) {
  int error = 0;
  do {
    error = ::fallocate(fd, 0, begin, end - begin) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error != EOPNOTSUPP) return error;
  return ::ftruncate(fd, end) == 0 ? 0 : errno;  // a file system that cannot: its free space was looked at
}

}  // namespace

SpillFile::SpillFile(std::string folder, int64_t reserve_bytes) : folder_(std::move(folder)) {
  open();
  try {
    if (reserve_bytes > 0) grow(whole_pages(reserve_bytes));
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

SpillFile::~SpillFile() {
  ::close(fd_);
}

void SpillFile::open() {
  fd_ = ::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
  if (fd_ >= 0) return;
  const int first_error = errno;
  if (first_error == EOPNOTSUPP || first_error == EISDIR) {  // a file system without nameless files
    std::string name = folder_ + "/bellows-activations-XXXXXX";
    fd_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd_ >= 0) {
      ::unlink(name.c_str());
      return;
    }
  }
  TORCH_CHECK(false, "offload: cannot make a file in ", folder_, ": ", errno_message(first_error),
              ". Give .folder one that exists and may be written.");
}

void SpillFile::grow(int64_t end) {
  const int64_t more = end - allocated_, limit = file_size_limit();
  TORCH_CHECK(end <= limit, "offload: expected files of ", end,
              " bytes to be allowed, but the limit of this process is ", limit,
              " (ulimit -f). Raise it, or offload fewer tensors (.min_bytes).");
  const int64_t available = available_bytes(fd_);
  const int error = available < more ? ENOSPC : allocate_on_disk(fd_, allocated_, end);
  TORCH_CHECK(error == 0, "offload: cannot take ", more, " bytes more on the disk of ", folder_, ": ",
              errno_message(error), "; ", available, " bytes are available there, this process holds ", allocated_,
              ". Free some, or give .folder a larger disk; .reserve_bytes takes all of it before the first step.");
  allocated_ = end;
}

int64_t SpillFile::take(int64_t bytes) {
  bytes = whole_pages(bytes);
  const std::lock_guard lock(mutex_);
  const auto fits = [&](const auto& part) { return part.second >= bytes; };
  const auto part = std::find_if(free_.begin(), free_.end(), fits);
  int64_t offset = end_;
  if (part != free_.end()) {
    offset = part->first;
    const int64_t rest = part->second - bytes;
    free_.erase(part);
    if (rest > 0) free_.emplace(offset + bytes, rest);
  } else {
    if (end_ + bytes > allocated_) {
      // In large steps, where there is room for them.
      const int64_t wanted = std::max(end_ + bytes, allocated_ + growth_bytes);
      const bool room = wanted <= file_size_limit() && wanted - allocated_ < available_bytes(fd_) / 2;
      grow(room ? wanted : end_ + bytes);
    }
    end_ += bytes;
  }
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return offset;
}

void SpillFile::give_back(int64_t offset, int64_t bytes) {
  bytes = whole_pages(bytes);
  const std::lock_guard lock(mutex_);
  used_ -= bytes;
  auto part = free_.emplace(offset, bytes).first;
  if (const auto next = std::next(part); next != free_.end() && part->first + part->second == next->first) {
    part->second += next->second;
    free_.erase(next);
  }
  if (part == free_.begin()) return;
  if (const auto before = std::prev(part); before->first + before->second == part->first) {
    before->second += part->second;
    free_.erase(part);
  }
}

void SpillFile::write(int64_t offset, const void* data, int64_t bytes) const {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n =
        ::pwrite(fd_, static_cast<const char*>(data) + done, static_cast<size_t>(bytes - done), offset + done);
    if (n < 0 && errno == EINTR) continue;
    TORCH_CHECK(n > 0, "offload: cannot write ", bytes - done, " bytes at offset ", offset + done, " of the file in ",
                folder_, ": ", errno_message(n < 0 ? errno : ENOSPC), ".");
    done += n;
  }
}

void SpillFile::read(int64_t offset, void* data, int64_t bytes) const {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n = ::pread(fd_, static_cast<char*>(data) + done, static_cast<size_t>(bytes - done), offset + done);
    if (n < 0 && errno == EINTR) continue;
    TORCH_CHECK(n > 0, "offload: cannot read ", bytes - done, " bytes at offset ", offset + done, " of the file in ",
                folder_, ": ", n < 0 ? errno_message(errno) : std::string("it ends there"), ".");
    done += n;
  }
}

int64_t SpillFile::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

}  // namespace bellows::recompute::detail
