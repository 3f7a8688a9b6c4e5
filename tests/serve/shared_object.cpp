#include "tests/serve/shared_object.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>

namespace bellows::serve {

SharedObject::SharedObject(int64_t bytes) {
  static std::atomic<int> next{0};
  key_ = "/bellows-test-" + std::to_string(getpid()) + "-" + std::to_string(next++);
  file_ = shm_open(key_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  TORCH_CHECK(file_ >= 0, "no shared memory object");
  resize(bytes);
}

SharedObject::~SharedObject() {
  close(file_);
  shm_unlink(key_.c_str());
}

int64_t SharedObject::size() const {
  struct stat status {};
  TORCH_CHECK(fstat(file_, &status) == 0);
  return status.st_size;
}

void SharedObject::resize(int64_t bytes) const {
  TORCH_CHECK(ftruncate(file_, bytes) == 0);
}

void SharedObject::write(int64_t offset, const std::vector<float>& values) const {
  const size_t bytes = values.size() * sizeof(float);
  TORCH_CHECK(pwrite(file_, values.data(), bytes, offset) == static_cast<ssize_t>(bytes));
}

std::vector<float> SharedObject::read(int64_t offset, size_t count) const {
  std::vector<float> values(count);
  const size_t bytes = count * sizeof(float);
  TORCH_CHECK(pread(file_, values.data(), bytes, offset) == static_cast<ssize_t>(bytes));
  return values;
}

}  // namespace bellows::serve
