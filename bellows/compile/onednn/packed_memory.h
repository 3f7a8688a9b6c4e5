#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

namespace bellows::compile_detail::onednn {

/// Memory for the packed weights of a program. Several weights share huge pages, where the system has them, because reading
/// large weights from pages of 4 KiB is slower: the processor's prefetchers stop at the end of each page.
/// Threads: not thread-safe
class PackedMemory {
 public:
  /// Returns bytes with undefined content, 64-byte aligned. Weights of one block stay in memory together: the block is freed
  /// when no tensor uses it.
  at::Tensor take(size_t nbytes);

 private:
  struct Block;
  std::shared_ptr<Block> block_;
  size_t used_ = 0;
};

}  // namespace bellows::compile_detail::onednn
