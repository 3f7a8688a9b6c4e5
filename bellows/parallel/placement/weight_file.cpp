#include "bellows/parallel/placement/weight_file.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/io/tensors/safetensors.h"

namespace bellows::parallel {

namespace {

/// Elements that are converted at once; longer rows are converted one by one. With more elements, libtorch would start
/// threads for the conversion.
constexpr int64_t converted_at_once = 32768;

constexpr uint64_t header_start_bytes = 4096;  // contains the complete header of most small files

std::string quoted(const io::SafetensorsEntry& entry) {
  return "\"" + entry.name + "\"";
}

}  // namespace

WeightFile::Descriptor::~Descriptor() {
  if (fd >= 0) ::close(fd);
}

WeightFile::WeightFile(std::string path) : path_(std::move(path)) {
  // Non-blocking, because opening a pipe without a writer would block forever.
  file_.fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  TORCH_CHECK_VALUE(file_.fd >= 0, path_, ": cannot open the file: ", errno_message(errno), ".");
  struct stat status {};
  TORCH_CHECK_VALUE(::fstat(file_.fd, &status) == 0, path_, ": cannot examine the file: ", errno_message(errno), ".");
  TORCH_CHECK_VALUE(S_ISREG(status.st_mode), path_, ": expected a regular file, found a folder, a pipe or a device.");
  size_ = status.st_size;
  changed_s_ = status.st_mtim.tv_sec;
  changed_ns_ = status.st_mtim.tv_nsec;
  entries_ = read_header();
}

std::vector<io::SafetensorsEntry> WeightFile::read_header() const {
  const auto size = static_cast<uint64_t>(size_);
  std::vector<std::byte> start(std::min(size, header_start_bytes));
  read_bytes("the header", 0, start.data(), start.size());
  const uint64_t known = start.size(), end = io::safetensors_header_end(start, size, path_);
  if (end > known) {
    start.resize(end);
    read_bytes("the header", known, start.data() + known, end - known);
  }
  return io::parse_safetensors_header(start, size, path_).entries;
}

void WeightFile::check_unchanged(const io::SafetensorsEntry& entry) const {
  struct stat status {};
  TORCH_CHECK_VALUE(::fstat(file_.fd, &status) == 0, path_, ": cannot read \"", entry.name,
                    "\": ", errno_message(errno), ".");
  const bool same =
      status.st_size == size_ && status.st_mtim.tv_sec == changed_s_ && status.st_mtim.tv_nsec == changed_ns_;
  TORCH_CHECK_VALUE(same, path_, ": the file changed while its weights were in use, so \"", entry.name,
                    "\" cannot be read any more. It had ", size_, " bytes and has ", status.st_size,
                    ". Do not write to the file; replace it by another one (write, then rename), and open it again.");
}

void WeightFile::read_bytes(const std::string& what, uint64_t position, void* memory, size_t bytes) const {
  auto* target = static_cast<char*>(memory);
  const uint64_t end = position + bytes;
  while (position < end) {
    const ssize_t count = ::pread(file_.fd, target, end - position, static_cast<off_t>(position));
    if (count < 0 && errno == EINTR) continue;
    TORCH_CHECK_VALUE(count >= 0, path_, ": cannot read ", what, " at byte ", position, ": ", errno_message(errno),
                      ".");
    TORCH_CHECK_VALUE(count > 0, path_, ": the file ends at byte ", position, ", but ", what, " needs bytes up to ",
                      end, ". Another program has truncated the file.");
    target += count;
    position += static_cast<uint64_t>(count);
  }
}

void WeightFile::read(const io::SafetensorsEntry& entry, const at::Tensor& target) const {
  if (target.numel() == 0) return;
  check_unchanged(entry);
  read_from(entry, 0, target);
}

void WeightFile::read(const io::SafetensorsEntry& entry, const comm::ShardSpec& part, const at::Tensor& target) const {
  if (target.numel() == 0) return;
  if (!target.is_cpu() || !target.is_contiguous()) {
    const at::Tensor values = at::empty(target.sizes(), at::TensorOptions(target.scalar_type()));
    read(entry, part, values);
    target.copy_(values);
    return;
  }
  check_unchanged(entry);
  const at::Tensor flat = target.view({-1});
  int64_t done = 0;
  for (const auto& [first, count] : part.runs()) {
    read_from(entry, first, flat.narrow(0, done, count));
    done += count;
  }
}

/// Reads elements in row-major order, starting with element `first` of the entry.
void WeightFile::read_from(const io::SafetensorsEntry& entry, int64_t first, const at::Tensor& target) const {
  const c10::ScalarType dtype = io::safetensors_dtype(entry, path_);
  const uint64_t position = entry.begin + static_cast<uint64_t>(first) * c10::elementSize(dtype);
  if (dtype == target.scalar_type() && target.is_contiguous()) {
    read_bytes(quoted(entry), position, target.data_ptr(), target.nbytes());
  } else {
    read_converted(entry, position, target);
  }
}

void WeightFile::read_converted(const io::SafetensorsEntry& entry, uint64_t position, const at::Tensor& target) const {
  // A row-major target may be split between any two elements, other targets only along their first dim.
  const at::Tensor rows = target.is_contiguous() ? target.view({-1}) : target;
  const int64_t count = rows.size(0), width = rows.numel() / count;
  const int64_t at_once = std::clamp<int64_t>(converted_at_once / width, 1, count);
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes[0] = at_once;
  const at::Tensor part = at::empty(sizes, at::TensorOptions(io::safetensors_dtype(entry, path_)));
  const int64_t row_bytes = width * static_cast<int64_t>(part.element_size());
  const std::string name = quoted(entry);
  for (int64_t row = 0; row < count; row += at_once) {
    const int64_t length = std::min(at_once, count - row);
    read_bytes(name, position + static_cast<uint64_t>(row * row_bytes), part.data_ptr(),
               static_cast<size_t>(length * row_bytes));
    rows.narrow(0, row, length).copy_(part.narrow(0, 0, length));
  }
}

}  // namespace bellows::parallel
