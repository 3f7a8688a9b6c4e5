#include "bellows/recompute/spill_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "bellows/core/error.h"

namespace bellows::recompute::detail {

namespace {

constexpr int64_t page_bytes = 4096;
constexpr int64_t growth_bytes = 64 << 20;

int64_t whole_pages(int64_t bytes) {
  const int64_t pages = bytes / page_bytes + (bytes % page_bytes > 0 ? 1 : 0);
  return std::min(pages, INT64_MAX / page_bytes) * page_bytes;
}

constexpr const char* advice =
    "You can also offload fewer tensors (.min_bytes). To reserve the space before the first step, set .reserve_bytes.";

}  // namespace

SpillFile::SpillFile(std::string folder, int64_t reserve_bytes) : file_(std::move(folder), "offload") {
  if (reserve_bytes > 0) file_.grow(whole_pages(reserve_bytes), advice);
}

int64_t SpillFile::take(int64_t bytes) {
  bytes = whole_pages(bytes);
  const MutexLock lock(mutex_);
  const auto fits = [&](const auto& part) { return part.second >= bytes; };
  const auto part = std::find_if(free_.begin(), free_.end(), fits);
  int64_t offset = end_;
  if (part != free_.end()) {
    offset = part->first;
    const int64_t rest = part->second - bytes;
    free_.erase(part);
    if (rest > 0) free_.emplace(offset + bytes, rest);
  } else {
    if (end_ + bytes > file_.size()) {
      // Grow in large steps if the disk has enough space.
      const int64_t wanted = std::max(end_ + bytes, file_.size() + growth_bytes);
      file_.grow(file_.has_plenty(wanted) ? wanted : end_ + bytes, advice);
    }
    end_ += bytes;
  }
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return offset;
}

void SpillFile::give_back(int64_t offset, int64_t bytes) {
  bytes = whole_pages(bytes);
  const MutexLock lock(mutex_);
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
    const ssize_t n = ::pwrite(file_.descriptor(), static_cast<const char*>(data) + done,
                               static_cast<size_t>(bytes - done), offset + done);
    if (n < 0 && errno == EINTR) continue;
    TORCH_CHECK(n > 0, "offload: cannot write ", bytes - done, " bytes at offset ", offset + done, " of the file in ",
                file_.folder(), ": ", errno_message(n < 0 ? errno : ENOSPC), ".");
    done += n;
  }
}

void SpillFile::read(int64_t offset, void* data, int64_t bytes) const {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n =
        ::pread(file_.descriptor(), static_cast<char*>(data) + done, static_cast<size_t>(bytes - done), offset + done);
    if (n < 0 && errno == EINTR) continue;
    TORCH_CHECK(n > 0, "offload: cannot read ", bytes - done, " bytes at offset ", offset + done, " of the file in ",
                file_.folder(), ": ", n < 0 ? errno_message(errno) : std::string("unexpected end of file"), ".");
    done += n;
  }
}

int64_t SpillFile::peak_bytes() const {
  const MutexLock lock(mutex_);
  return peak_;
}

}  // namespace bellows::recompute::detail
