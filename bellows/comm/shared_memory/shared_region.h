#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "bellows/comm/rendezvous/peer.h"

namespace bellows::comm {

/// How the ranks find the memory that the first rank created.
struct RegionAddress {
  int64_t pid = 0;
  int64_t file = -1;  ///< descriptor in the first rank; -1: there is no memory
  int64_t token = 0;  ///< at the start of the memory
};

/// A description of a collective call. All ranks must make the same calls.
struct RegionCall {
  enum class Kind : int64_t { all_reduce, all_gather, reduce_scatter, broadcast };
  Kind kind = Kind::all_reduce;
  int64_t type = 0;    ///< at::ScalarType
  int64_t option = 0;  ///< reduction, or the rank that sends
  int64_t numel = 0;
  int64_t number = 0;  ///< of the call within the group

  bool operator==(const RegionCall&) const = default;
};

/// Memory that the ranks of one machine share. It has a barrier, and buffers through which the ranks exchange tensors.
/// The memory has no name in the file system, and disappears with the last rank.
/// Threads: one thread per rank; close() may be called from any thread
class SharedRegion {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// Returns null if the system provides no such memory.
  static std::unique_ptr<SharedRegion> create(int size);
  /// Opens the memory that the first rank created. Returns null if it is not accessible, for example because the ranks
  /// run on different machines.
  static std::unique_ptr<SharedRegion> open(const RegionAddress& address, int rank, int size);
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  RegionAddress address() const { return address_; }
  /// Call this function when all ranks have opened the memory.
  void all_opened();

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Size of a buffer.
  static constexpr int64_t buffer_bytes = 1 << 20;
  /// Buffer of a rank. Each rank has two, numbered 0 and 1.
  std::byte* buffer(int rank, int64_t number) const { return memory_ + offset(rank, number); }
  /// One of two buffers that belong to no rank.
  std::byte* result(int64_t number) const { return buffer(size_, number); }

  /// Announces the next call of this rank. Its first barrier throws if another rank made a different call.
  void announce(const RegionCall& call);
  /// Waits until all ranks have called this function equally often. All ranks then see the data that a rank wrote before.
  /// Throws: c10::Error if a rank closed the memory, ended, or did not call this function before `end`; c10::ValueError if the
  ///         ranks make different calls. Afterwards, every further call throws, on all ranks
  void barrier(TimePoint end);
  /// Ends the waits of this rank, and those of all ranks for this rank.
  void close();

 private:
  struct Header;
  struct Slot;
  SharedRegion(int rank, int size);
  bool map(int file);
  size_t offset(int rank, int64_t number) const;
  size_t bytes() const { return offset(size_, 2); }
  Header& header() const;
  Slot& slot(int rank) const;
  bool all_arrived() const;
  void check_open() const;
  void wait_for_all(TimePoint end);
  void check_missing() const;
  void check_calls() const;

  const int rank_;
  const int size_;
  const int64_t owner_;  ///< the process
  RegionAddress address_;
  std::byte* memory_ = nullptr;
  std::vector<Peer> peers_;
  uint64_t arrived_ = 0;  ///< number of barriers that this rank has reached
  int64_t calls_ = 0;     ///< number of announced calls
  bool announced_ = false;
};

}  // namespace bellows::comm
