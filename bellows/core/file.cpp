#include "bellows/core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "bellows/core/error.h"

namespace bellows {

namespace {

/// Closes a file descriptor at the end of a scope.
struct FileHandle {
  int fd;
  ~FileHandle() {
    if (fd >= 0) ::close(fd);
  }
};

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const FileHandle file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  TORCH_CHECK_VALUE(file.fd >= 0, "cannot open ", path, ": ", errno_message(errno), ".");
  struct stat status {};
  TORCH_CHECK(::fstat(file.fd, &status) == 0, "cannot examine ", path, ": ", errno_message(errno), ".");
  TORCH_CHECK_VALUE(!S_ISDIR(status.st_mode), "cannot read ", path, ": it is a folder, a file was expected.");
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;
  void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  TORCH_CHECK(memory != MAP_FAILED, "cannot map ", path, " (", size_, " bytes): ", errno_message(errno), ".");
  data_ = static_cast<const std::byte*>(memory);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".XXXXXX") {
  fd_ = ::mkostemp(temporary_.data(), O_CLOEXEC);
  TORCH_CHECK(fd_ >= 0, "cannot write ", path_, ": ", errno_message(errno),
              ". The folder must exist and be writable: ", folder_of(path_));
  const mode_t mask = ::umask(0);
  ::umask(mask);
  ::fchmod(fd_, 0666 & ~mask);  // mkostemp's 0600 would hide the result from others
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  TORCH_CHECK(fd_ >= 0, "AtomicFile: ", path_, " was committed already; nothing can be added.");
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    TORCH_CHECK(written >= 0, "cannot write ", path_, " at byte ", offset_, ": ", errno_message(errno),
                ". The file is as it was before; free some space or choose another folder.");
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset_ += static_cast<uint64_t>(written);
  }
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text)));
}

void AtomicFile::commit() {
  TORCH_CHECK(fd_ >= 0, "AtomicFile: ", path_, " was committed already.");
  TORCH_CHECK(::fsync(fd_) == 0, "cannot flush ", path_, " to disk: ", errno_message(errno), ".");
  TORCH_CHECK(::rename(temporary_.c_str(), path_.c_str()) == 0, "cannot rename ", temporary_, " to ", path_, ": ",
              errno_message(errno), ".");
  ::close(fd_);
  fd_ = -1;
  // The name itself is on disk only when the folder is.
  const FileHandle folder{::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (folder.fd >= 0) ::fsync(folder.fd);
}

std::string read_text_file(const std::string& path) {
  const MappedFile file(path);
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

void write_text_file(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace bellows
