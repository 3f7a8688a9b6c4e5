#include "bellows/compile/onednn/packed_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <new>

#include "bellows/core/round_up.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace bellows::compile_detail::onednn {
namespace {

constexpr size_t huge_page = size_t{1} << 21, block_bytes = 8 * huge_page, alignment = 64;
/// Smaller weights gain nothing.
constexpr size_t least_bytes = size_t{1} << 16;

}  // namespace

struct PackedMemory::Block {
  explicit Block(size_t bytes) : size(bytes), memory(::operator new(bytes, std::align_val_t(huge_page))) {
#ifdef MADV_HUGEPAGE
    ::madvise(memory, size, MADV_HUGEPAGE);  // fails where huge pages are off, which only costs speed
#endif
  }
  ~Block() {
    ::operator delete(memory, std::align_val_t(huge_page));
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  size_t size;
  void* memory;
};

at::Tensor PackedMemory::take(size_t nbytes) {
  if (nbytes < least_bytes) return at::empty({static_cast<int64_t>(nbytes)}, at::kByte);
  const size_t rounded = round_up(nbytes, alignment);
  if (!block_ || used_ + rounded > block_->size) {
    block_ = std::make_shared<Block>(std::max(block_bytes, round_up(rounded, huge_page)));
    used_ = 0;
  }
  char* const at = static_cast<char*>(block_->memory) + used_;
  used_ += rounded;
  return at::from_blob(
      at, {static_cast<int64_t>(nbytes)}, [block = block_](void*) {}, at::kByte);
}

}  // namespace bellows::compile_detail::onednn
