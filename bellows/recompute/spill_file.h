#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "bellows/system/unlinked_temp_file.h"

namespace bellows::recompute::detail {

/// A file without a name, and who uses which part of it. The system takes it away when the process ends, by whatever.
/// Threads: safe
class SpillFile {
 public:
  /// Throws: c10::Error – the folder cannot be written, or has no room for `reserve_bytes`
  SpillFile(std::string folder, int64_t reserve_bytes);
  /// A part that nobody uses, of whole pages.
  /// Throws: c10::Error – the disk is full
  int64_t take(int64_t bytes);
  void give_back(int64_t offset, int64_t bytes);
  /// Throws: c10::Error – disk errors: what, where, the system's reason
  void write(int64_t offset, const void* data, int64_t bytes) const;
  void read(int64_t offset, void* data, int64_t bytes) const;
  /// The most that was in use.
  int64_t peak_bytes() const;

 private:
  NamelessFile file_;
  mutable std::mutex mutex_;
  std::map<int64_t, int64_t> free_;  ///< offset, size; neighbours are joined
  int64_t end_ = 0;                  ///< of what was ever used
  int64_t used_ = 0, peak_ = 0;
};

}  // namespace bellows::recompute::detail
