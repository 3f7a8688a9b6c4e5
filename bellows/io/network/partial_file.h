#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bellows/io/bytes.h"
#include "bellows/system/file.h"

namespace bellows::io {

/// A file of which only those parts are here that somebody needs: the header and the index of a large one elsewhere.
/// Threads: one at a time where need() is called
class PartialFile {
 public:
  /// Fills `out` with the file's bytes from `offset` on, or throws.
  using Fetch = std::function<void(uint64_t offset, std::span<std::byte> out)>;

  /// A file that is here: need() has nothing to do.
  explicit PartialFile(std::shared_ptr<const MappedFile> whole);
  /// Cost:   address space for `size` bytes, memory for the parts
  /// Throws: c10::Error – no address space
  PartialFile(uint64_t size, Fetch fetch);

  /// As many as the file has, always in the same place; zeros where nothing was needed yet.
  ByteSpan bytes() const { return bytes_; }
  /// Fetches what is missing of [begin, end), as far as the file goes. Throws what the fetch throws.
  void need(uint64_t begin, uint64_t end);

 private:
  std::shared_ptr<const void> owner_;
  ByteSpan bytes_;
  Fetch fetch_;  // none: the file is here
  std::vector<std::pair<uint64_t, uint64_t>> here_;
};

}  // namespace bellows::io
