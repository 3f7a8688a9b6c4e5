#include "bellows/system/file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/system/replaced_file.h"
#include "bellows/system/stop.h"

namespace bellows {

namespace {

/// Closes a file descriptor at the end of a scope.
struct FileHandle {
  int fd;
  ~FileHandle() {
    if (fd >= 0) ::close(fd);
  }
};

constexpr size_t pipe_limit_bytes = 16 << 20;  // /dev/zero never ends
constexpr int poll_ms = 50;

/// Reads the umask from /proc, because umask() can only read it by changing it for all threads.
mode_t current_umask() {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key; status.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    if (key != "Umask:") continue;
    mode_t mask = 0;
    status >> std::oct >> mask;
    return mask;
  }
  return 022;
}

/// Follows symbolic links to the file that `path` refers to. The target of the link may not exist yet.
std::string behind_links(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_symlink(path, error)) return path;
  const std::filesystem::path target = std::filesystem::weakly_canonical(path, error);
  if (!error && !std::filesystem::is_symlink(target, error)) return target;
  return std::filesystem::path(path).parent_path() / std::filesystem::read_symlink(path);
}

/// Opens a pipe or device for writing. If a pipe has no reader yet, waits for one; request_stop() ends the wait.
int open_special(const std::string& path) {
  LongWait wait("a reader of " + path);
  for (;; wait.sleep(std::chrono::milliseconds(poll_ms))) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_APPEND | O_NONBLOCK);
    std::error_code ignored;
    if (fd < 0 && errno == ENXIO && std::filesystem::is_fifo(path, ignored)) continue;
    if (fd >= 0) ::fcntl(fd, F_SETFL, O_APPEND);  // later writes may block
    return fd;
  }
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

}  // namespace

void take_ownership(int fd, const std::string& replaced) {
  struct stat old {};
  mode_t mode = 0666 & ~current_umask();  // mkostemp's 0600 would hide the result from other users
  if (::stat(replaced.c_str(), &old) == 0) {
    mode = old.st_mode & 0777;
    // Only root may change the owner; the group must be one of the caller's.
    const bool kept = ::fchown(fd, old.st_uid, old.st_gid) == 0;
    const bool same_group = kept || ::fchown(fd, static_cast<uid_t>(-1), old.st_gid) == 0;
    // The new group must not get the permissions of the old group.
    if (!same_group) mode = (mode & ~mode_t{070}) | (mode & ((mode & 07) << 3));
  }
  ::fchmod(fd, mode);
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // Non-blocking, because opening a pipe without a writer would block forever.
  const FileHandle file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  TORCH_CHECK_VALUE(file.fd >= 0, "cannot open ", path, ": ", errno_message(errno), ".");
  struct stat status {};
  TORCH_CHECK(::fstat(file.fd, &status) == 0, "cannot examine ", path, ": ", errno_message(errno), ".");
  TORCH_CHECK_VALUE(!S_ISDIR(status.st_mode), "cannot read ", path, ": expected a file, found a folder.");
  TORCH_CHECK_VALUE(S_ISREG(status.st_mode), "cannot read ", path,
                    ": expected a regular file, found a pipe or a device.");
  size_ = static_cast<size_t>(status.st_size);
  if (size_ > 0) {
    void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
    TORCH_CHECK(memory != MAP_FAILED, "cannot map ", path, " (", size_, " bytes): ", errno_message(errno), ".");
    data_ = static_cast<const std::byte*>(memory);
  }
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::check_size() const {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0 || status.st_dev != device_ || status.st_ino != inode_) return;
  TORCH_CHECK_VALUE(static_cast<size_t>(status.st_size) >= size_, path_, " was truncated while it was read. It had ",
                    size_, " bytes, and it now has ", status.st_size,
                    ". Write a new file and rename it over the old one.");
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  struct stat status {};
  // /dev/stdout or /dev/fd/3 may lead to a regular file that other processes have open, if the shell redirects it.
  const bool exists = ::stat(path_.c_str(), &status) == 0;
  TORCH_CHECK(!exists || !S_ISDIR(status.st_mode), "cannot write ", path_, ": it is a folder. Specify a file.");
  const bool special =
      exists && (!S_ISREG(status.st_mode) || path_.starts_with("/dev/") || path_.starts_with("/proc/"));
  if (special) {
    fd_ = open_special(path_);
    TORCH_CHECK(fd_ >= 0, "cannot write ", path_, ": ", errno_message(errno), ".");
  } else {
    open_temporary();
  }
}

void AtomicFile::open_temporary() {
  path_ = behind_links(path_);
  temporary_ = path_ + ".tmp-XXXXXX";
  fd_ = ::mkostemp(temporary_.data(), O_CLOEXEC);
  TORCH_CHECK(fd_ >= 0, "cannot write ", path_, ": ", errno_message(errno),
              ". This folder must exist and be writable: ", folder_of(path_));
  take_ownership(fd_, path_);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  TORCH_CHECK(fd_ >= 0, "AtomicFile: ", path_, " is already committed, so nothing can be added.");
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    TORCH_CHECK(written >= 0, "cannot write ", path_, " at byte ", offset_, ": ", errno_message(errno),
                ". The file is unchanged. Free some space or choose another folder.");
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset_ += static_cast<uint64_t>(written);
  }
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text)));
}

void AtomicFile::check_written(uint64_t offset, uint64_t size) const {
  TORCH_CHECK(fd_ >= 0, "AtomicFile: ", path_, " is already committed.");
  TORCH_CHECK(!temporary_.empty(), "cannot seek in ", path_,
              ": it is not a regular file. Write to a regular file and copy it.");
  TORCH_CHECK(size <= offset_ && offset <= offset_ - size, "AtomicFile: expected a part of the ", offset_,
              " bytes that were written to ", path_, ", got bytes ", offset, " to ", offset + size, ".");
}

void AtomicFile::overwrite(uint64_t offset, std::span<const std::byte> bytes) {
  check_written(offset, bytes.size());
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    TORCH_CHECK(written > 0, "cannot write ", path_, " at byte ", offset, ": ", errno_message(errno),
                ". The file is unchanged.");
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
}

void AtomicFile::read_back(uint64_t offset, std::span<std::byte> out) const {
  check_written(offset, out.size());
  while (!out.empty()) {
    const ssize_t got = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    TORCH_CHECK(got > 0, "cannot read back ", path_, " at byte ", offset, ": ",
                got < 0 ? errno_message(errno) : "the file ends there", ".");
    out = out.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
}

void AtomicFile::commit() {
  TORCH_CHECK(fd_ >= 0, "AtomicFile: ", path_, " is already committed.");
  if (temporary_.empty()) {
    ::close(std::exchange(fd_, -1));
    return;
  }
  TORCH_CHECK(::fsync(fd_) == 0, "cannot flush ", path_, " to disk: ", errno_message(errno), ".");
  TORCH_CHECK(::rename(temporary_.c_str(), path_.c_str()) == 0, "cannot rename ", temporary_, " to ", path_, ": ",
              errno_message(errno), ".");
  ::close(fd_);
  fd_ = -1;
  // The new name is on disk only after the folder is synced.
  const FileHandle folder{::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (folder.fd >= 0) ::fsync(folder.fd);
}

std::string read_text_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_other(path, error)) {
    const MappedFile file(path);
    return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  }
  // Non-blocking: a pipe may have no writer yet. poll() reports the end of a pipe only after it has seen a writer.
  const FileHandle file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  TORCH_CHECK_VALUE(file.fd >= 0, "cannot open ", path, ": ", errno_message(errno), ".");
  LongWait wait("text from " + path, "the pipe or device sends no data");
  std::string text;
  std::array<char, 4096> buffer{};
  for (;;) {
    wait.check();
    pollfd ready{file.fd, POLLIN, 0};
    if (::poll(&ready, 1, poll_ms) <= 0) continue;  // no data yet, or a signal
    const ssize_t count = ::read(file.fd, buffer.data(), buffer.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    TORCH_CHECK_VALUE(count >= 0, "cannot read ", path, ": ", errno_message(errno), ".");
    if (count == 0) return text;
    wait.restart();
    text.append(buffer.data(), static_cast<size_t>(count));
    TORCH_CHECK_VALUE(text.size() <= pipe_limit_bytes, "cannot read ", path, ": the text is longer than ",
                      pipe_limit_bytes, " bytes, but a short text was expected.");
  }
}

void write_text_file(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace bellows
