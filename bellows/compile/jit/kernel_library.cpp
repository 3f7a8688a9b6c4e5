#include "bellows/compile/jit/kernel_library.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "bellows/core/error.h"

namespace bellows::compile_detail {

Library::Library(std::string_view content) {
  const int fd = ::memfd_create("bellows-kernel", MFD_CLOEXEC);
  TORCH_CHECK(fd >= 0, "compile: cannot allocate memory for a kernel: ", errno_message(errno), ".");
  for (size_t done = 0; done < content.size();) {
    const ssize_t written = ::write(fd, content.data() + done, content.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;  // the loader will report the truncated file
    done += static_cast<size_t>(written);
  }
  handle_ = ::dlopen(("/proc/self/fd/" + std::to_string(fd)).c_str(), RTLD_NOW | RTLD_LOCAL);
  const std::string why = handle_ ? "" : ::dlerror();
  if (!handle_) ::close(fd);
  TORCH_CHECK(handle_, "compile: cannot load a kernel: ", why);
  fd_ = fd;
}

Library::~Library() {
  ::dlclose(handle_);
  ::close(fd_);
}

void* Library::symbol(const std::string& name) const {
  void* const found = ::dlsym(handle_, name.c_str());
  TORCH_CHECK(found, "compile: a generated library has no symbol ", name, ".");
  return found;
}

std::string Library::content() const {
  struct stat status {};
  TORCH_CHECK(::fstat(fd_, &status) == 0, "compile: cannot read a loaded kernel: ", errno_message(errno), ".");
  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  const ssize_t read = ::pread(fd_, bytes.data(), bytes.size(), 0);
  TORCH_CHECK(read == status.st_size, "compile: cannot read a loaded kernel.");
  return bytes;
}

}  // namespace bellows::compile_detail
