#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/optim/state/state_file.h"
#include "bellows/system/thread.h"
#include "bellows/tap/deferral.h"

namespace bellows::optim {

StateFile::User StateFile::optimizer_state() {
  return {"offload_state", "To need less space, use int8 or int4 state (state_dtype)."};
}

std::shared_ptr<StateFile> StateFile::make(const std::string& folder, int64_t bytes, User user) {
  return std::shared_ptr<StateFile>(new StateFile(folder, bytes, std::move(user)));
}

int64_t StateFile::page_bytes() {
  return ::sysconf(_SC_PAGESIZE);
}

StateFile::StateFile(const std::string& folder, int64_t bytes, User user)
    : user_(std::move(user)), file_(folder, user_.name) {
  file_.grow(bytes, user_.advice);
  file_.fill(0, user_.advice);  // otherwise, writing to pages without disk space would end the process
  void* const memory =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file_.descriptor(), 0);
  TORCH_CHECK(memory != MAP_FAILED, user_.name, ": cannot map ", bytes, " bytes of the file in ", file_.folder(), ": ",
              errno_message(errno), ".");
  memory_ = static_cast<char*>(memory);
}

StateFile::~StateFile() {
  if (memory_) ::munmap(memory_, static_cast<size_t>(size()));
}

at::Tensor StateFile::tensor(int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides,
                             const at::TensorOptions& options) {
  return at::from_blob(
      memory_ + offset, sizes, strides, [self = shared_from_this()](void*) {}, options);
}

at::Tensor StateFile::put(const at::Tensor& tensor, int64_t offset) {
  return this->tensor(offset, tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor);
}

bool StateFile::holds(const at::Tensor& tensor) const {
  tap::sync();
  const auto* const data = static_cast<const char*>(tensor.const_data_ptr());
  return data >= memory_ && data < memory_ + size();
}

void StateFile::fetch(FilePart part) const {
  ::madvise(memory_ + part.offset, static_cast<size_t>(part.bytes), MADV_WILLNEED);
}

void StateFile::write_out(FilePart part) const {
  constexpr unsigned all = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  // Drops the mapping first, so that the file sees its changes. Accessing a page maps it again.
  ::madvise(memory_ + part.offset, static_cast<size_t>(part.bytes), MADV_DONTNEED);
  while (::sync_file_range(file_.descriptor(), part.offset, part.bytes, all) != 0) {
    TORCH_CHECK(errno == EINTR, user_.name, ": cannot write ", part.bytes, " bytes at offset ", part.offset,
                " of the file in ", file_.folder(), ": ", errno_message(errno), ".");
  }
  ::posix_fadvise(file_.descriptor(), part.offset, part.bytes, POSIX_FADV_DONTNEED);
  if (resident_bytes(part) == 0) return;
  // On layered file systems, as in containers, sync_file_range() affects only the upper file. msync() works on the
  // mapping.
  ::msync(memory_ + part.offset, static_cast<size_t>(part.bytes), MS_SYNC);
  ::posix_fadvise(file_.descriptor(), part.offset, part.bytes, POSIX_FADV_DONTNEED);
}

int64_t StateFile::resident_bytes(FilePart part) const {
  const int64_t page = page_bytes();
  std::vector<unsigned char> pages(static_cast<size_t>((part.bytes + page - 1) / page));
  if (::mincore(memory_ + part.offset, static_cast<size_t>(part.bytes), pages.data()) != 0) return part.bytes;
  return page * std::count_if(pages.begin(), pages.end(), [](unsigned char flags) { return (flags & 1) != 0; });
}

// --- writing in the background

StateWriter::StateWriter(std::shared_ptr<const StateFile> file, int64_t most_bytes)
    : file_(std::move(file)), most_bytes_(most_bytes), thread_(start_thread(file_->user(), [this] { run(); })) {}

StateWriter::~StateWriter() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
    queue_.clear();  // the system writes the remaining pages
  }
  work_.notify_one();
  thread_.join();
}

void StateWriter::give(FilePart part) {
  UniqueLock lock(mutex_);
  progress_.wait(lock, [&]() BELLOWS_REQUIRES(mutex_) { return waiting_bytes_ <= most_bytes_ || error_; });
  rethrow_error();
  queue_.push_back(part);
  waiting_bytes_ += part.bytes;
  work_.notify_one();
}

void StateWriter::wait() {
  UniqueLock lock(mutex_);
  progress_.wait(lock, [&]() BELLOWS_REQUIRES(mutex_) { return waiting_bytes_ == 0 || error_; });
  rethrow_error();
}

void StateWriter::rethrow_error() {
  if (error_) std::rethrow_exception(error_);
}

void StateWriter::run() {
  UniqueLock lock(mutex_);
  while (true) {
    work_.wait(lock, [&]() BELLOWS_REQUIRES(mutex_) { return ending_ || !queue_.empty(); });
    if (ending_) return;
    const FilePart part = queue_.front();
    queue_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      file_->write_out(part);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !error_) error_ = error;
    waiting_bytes_ -= part.bytes;
    progress_.notify_all();
  }
}

}  // namespace bellows::optim
