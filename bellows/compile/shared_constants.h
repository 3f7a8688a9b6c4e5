#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <span>
#include <unordered_map>

#include "bellows/graph/program/program.h"

namespace bellows::compile_detail {

/// Of 64 pieces from all over it, at least 16 bytes: alike for equal bytes, and nearly never else.
uint64_t digest_of(const c10::Storage& storage);

/// Constants that several programs hold are there once: programs of one function for inputs of other sizes pack the same weights.
/// Threads: one at a time
class SharedConstants {
 public:
  /// Puts constants of earlier programs in the place of equal ones of this program, and keeps its others in mind as long as a program
  /// holds them. Those of the caller stay what they are.
  /// Cost:    reads the bytes of those that are equal
  /// Returns: bytes that are now shared
  size_t share(graph::Program& program, std::span<const c10::Storage> of_caller);

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  std::unordered_multimap<uint64_t, Weak> known_;  ///< by a digest of some of the bytes
};

}  // namespace bellows::compile_detail
