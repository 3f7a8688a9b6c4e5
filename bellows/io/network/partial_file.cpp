#include "bellows/io/network/partial_file.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "bellows/core/error.h"

namespace bellows::io {

namespace {

constexpr uint64_t partial_page = 4096;

}  // namespace

PartialFile::PartialFile(std::shared_ptr<const MappedFile> whole) : bytes_(whole->bytes()) {
  owner_ = std::move(whole);
}

PartialFile::PartialFile(uint64_t size, Fetch fetch) : fetch_(std::move(fetch)) {
  if (size == 0) return;
  // Pages without write permission do not count as used memory.
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(memory != MAP_FAILED, "cannot reserve address space for a file of ", size,
              " bytes: ", errno_message(errno), ".");
  owner_ = std::shared_ptr<const void>(memory, [size](void* taken) { ::munmap(taken, size); });
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

void PartialFile::need(uint64_t begin, uint64_t end) {
  end = std::min<uint64_t>(end, bytes_.size());
  for (const auto& [from, to] : here_) {
    if (from <= begin && begin < to) begin = to;
    if (from < end && end <= to) end = from;
  }
  if (!fetch_ || begin >= end) return;
  auto* memory = const_cast<std::byte*>(bytes_.data());
  const uint64_t page = begin / partial_page * partial_page;
  TORCH_CHECK(::mprotect(memory + page, end - page, PROT_READ | PROT_WRITE) == 0, "cannot allocate memory for ",
              end - begin, " bytes: ", errno_message(errno), ".");
  fetch_(begin, {memory + begin, end - begin});
  here_.emplace_back(begin, end);
}

}  // namespace bellows::io
