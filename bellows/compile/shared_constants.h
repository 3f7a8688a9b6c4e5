#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <span>
#include <unordered_map>

#include "bellows/graph/program/program.h"

namespace bellows::compile_detail {

/// Returns a digest of 64 pieces of the storage, which must have at least 16 bytes. Equal bytes have equal digests.
/// Different bytes almost always have different digests.
uint64_t digest_of(const c10::Storage& storage);

/// Stores equal constants of several programs only once. Programs of one function for different input sizes, for
/// example, pack the same weights.
/// Threads: not thread-safe
class SharedConstants {
 public:
  /// Replaces constants of this program with equal constants of earlier programs. All other constants of this program
  /// can be shared with later programs while a program uses them. Constants that belong to the caller are not replaced.
  /// The same applies to constants below 4 KiB and to constants that are not on the CPU.
  /// Cost:    compares all bytes of constants that have equal digests
  /// Returns: the number of bytes that are now shared
  size_t share(graph::Program& program, std::span<const c10::Storage> of_caller);

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  std::unordered_multimap<uint64_t, Weak> known_;  ///< by a digest of some of the bytes
};

}  // namespace bellows::compile_detail
