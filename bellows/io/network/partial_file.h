#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bellows/io/bytes.h"
#include "bellows/system/file.h"

namespace bellows::io {

/// A file of which only the requested parts are loaded. It is used for the header and the index of large remote files.
/// Threads: need() must not run concurrently
class PartialFile {
 public:
  /// Fills `out` with the bytes of the file at `offset`, or throws.
  using Fetch = std::function<void(uint64_t offset, std::span<std::byte> out)>;

  /// Uses a local file. need() then does nothing.
  explicit PartialFile(std::shared_ptr<const MappedFile> whole);
  /// Cost:   address space for `size` bytes, and memory for the loaded parts
  /// Throws: c10::Error if the system has no address space left
  PartialFile(uint64_t size, Fetch fetch);

  /// All bytes of the file, always at the same address. Parts that were not requested are zero.
  ByteSpan bytes() const { return bytes_; }
  /// Fetches the missing parts of [begin, end). The range is clipped to the end of the file.
  /// Throws: the exceptions of the fetch function
  void need(uint64_t begin, uint64_t end);

 private:
  std::shared_ptr<const void> owner_;
  ByteSpan bytes_;
  Fetch fetch_;  // empty: the file is local
  std::vector<std::pair<uint64_t, uint64_t>> here_;
};

}  // namespace bellows::io
