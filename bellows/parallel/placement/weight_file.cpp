#include "bellows/parallel/placement/weight_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/io/tensors/safetensors.h"

namespace bellows::parallel {

namespace {

/// Elements that are converted at once. With more, libtorch would start threads for the conversion.
constexpr int64_t converted_at_once = 32768;

bool is_row_major(const at::Tensor& tensor) {
  return tensor.is_contiguous();
}

}  // namespace

WeightFile::WeightFile(std::string path) : path_(std::move(path)) {
  entries_ = io::SafetensorsFile(path_).entries();
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  TORCH_CHECK_VALUE(fd_ >= 0, path_, ": cannot open the file: ", errno_message(errno), ".");
  struct stat status {};
  const bool known = ::fstat(fd_, &status) == 0;
  size_ = status.st_size;
  changed_s_ = status.st_mtim.tv_sec;
  changed_ns_ = status.st_mtim.tv_nsec;
  const bool complete = entries_.empty() || entries_.back().end == static_cast<uint64_t>(size_);
  if (known && complete) return;
  ::close(fd_);
  TORCH_CHECK_VALUE(false, path_, ": the file changed while it was opened. Try again when it is complete.");
}

WeightFile::~WeightFile() {
  ::close(fd_);
}

void WeightFile::check_unchanged(const io::SafetensorsEntry& entry) const {
  struct stat status {};
  TORCH_CHECK_VALUE(::fstat(fd_, &status) == 0, path_, ": cannot read \"", entry.name, "\": ", errno_message(errno),
                    ".");
  const bool same =
      status.st_size == size_ && status.st_mtim.tv_sec == changed_s_ && status.st_mtim.tv_nsec == changed_ns_;
  TORCH_CHECK_VALUE(same, path_, ": the file changed while its weights were in use, so \"", entry.name,
                    "\" cannot be read any more. It had ", size_, " bytes and has ", status.st_size,
                    ". Do not write to the file; replace it by another one (write, then rename), and open it again.");
}

void WeightFile::read_bytes(const io::SafetensorsEntry& entry, uint64_t position, void* memory, size_t bytes) const {
  auto* target = static_cast<char*>(memory);
  while (bytes > 0) {
    const ssize_t count = ::pread(fd_, target, bytes, static_cast<off_t>(position));
    if (count < 0 && errno == EINTR) continue;
    TORCH_CHECK_VALUE(count >= 0, path_, ": cannot read \"", entry.name, "\" at byte ", position, ": ",
                      errno_message(errno), ".");
    TORCH_CHECK_VALUE(count > 0, path_, ": the file ends at byte ", position, ", but \"", entry.name,
                      "\" needs bytes up to ", entry.end, ". Another program has truncated the file.");
    target += count;
    position += static_cast<uint64_t>(count);
    bytes -= static_cast<size_t>(count);
  }
}

void WeightFile::read(const io::SafetensorsEntry& entry, const at::Tensor& target) const {
  if (target.numel() == 0) return;
  check_unchanged(entry);
  if (io::safetensors_dtype(entry, path_) == target.scalar_type() && is_row_major(target)) {
    read_bytes(entry, entry.begin, target.data_ptr(), target.nbytes());
  } else {
    read_converted(entry, target);
  }
}

void WeightFile::read_converted(const io::SafetensorsEntry& entry, const at::Tensor& target) const {
  // Row-major tensors are read as one row per element; others are read along their first dim.
  const bool flat = is_row_major(target);
  const at::Tensor rows = flat ? target.view({-1}) : target;
  const int64_t count = rows.size(0), width = rows.numel() / count;
  const int64_t at_once = std::clamp<int64_t>(converted_at_once / width, 1, count);
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes[0] = at_once;
  const at::Tensor part = at::empty(sizes, at::TensorOptions(io::safetensors_dtype(entry, path_)));
  const int64_t row_bytes = width * static_cast<int64_t>(part.element_size());
  for (int64_t row = 0; row < count; row += at_once) {
    const int64_t length = std::min(at_once, count - row);
    read_bytes(entry, entry.begin + static_cast<uint64_t>(row * row_bytes), part.data_ptr(),
               static_cast<size_t>(length * row_bytes));
    rows.narrow(0, row, length).copy_(part.narrow(0, 0, length));
  }
}

}  // namespace bellows::parallel
