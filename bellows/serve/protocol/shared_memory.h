#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bellows/core/mutex.h"

/// Triton's system shared memory extension: clients on the same machine pass tensors in POSIX shared memory objects.
namespace bellows::serve {

/// A part of a shared memory object that a client has registered.
///
/// The object is never mapped: values are copied with pread() and pwrite(). A client that makes its object smaller
/// therefore causes an error of its own request, and not SIGBUS. For the same reason, a client cannot change values while
/// a model computes with them.
/// Threads: thread-safe
class SharedRegion {
 public:
  /// Params: key    – name of the object, as for shm_open()
  ///         offset – of the region in the object
  ///         bytes  – size of the region
  /// Throws: RequestError with status 400 if there is no such object, or if it is smaller than the region
  SharedRegion(std::string name, std::string key, uint64_t offset, uint64_t bytes);
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  const std::string& name() const { return name_; }
  const std::string& key() const { return key_; }
  uint64_t offset() const { return offset_; }
  uint64_t bytes() const { return bytes_; }

  /// Copies bytes from or to a part of the region.
  /// Params: from – offset in the region; `from` + `bytes` must not be larger than the region
  /// Throws: RequestError with status 400 if the object is smaller now than when it was registered
  void read(uint64_t from, void* to, uint64_t bytes) const;
  void write(uint64_t to, const void* from, uint64_t bytes) const;

 private:
  void check_size(uint64_t end) const;
  [[noreturn]] void shrunk() const;

  const std::string name_, key_;
  const uint64_t offset_, bytes_;
  int file_ = -1;
};

/// A checked part of a region. The region exists as long as this object, even if the client unregisters it.
struct RegionPart {
  std::shared_ptr<const SharedRegion> region{};
  uint64_t offset = 0;  ///< in the region
  uint64_t bytes = 0;

  explicit operator bool() const { return region != nullptr; }
};

/// The regions that clients have registered.
/// Threads: thread-safe
class SharedMemory {
 public:
  /// Params: max_part_bytes – largest part() of a region. Objects can be larger than the memory, because their pages are
  ///                          allocated only when they are written
  explicit SharedMemory(uint64_t max_part_bytes) : max_part_bytes_(max_part_bytes) {}

  /// Throws: RequestError with status 409 if a region has this name, and the errors of SharedRegion
  void add(const std::string& name, const std::string& key, uint64_t offset, uint64_t bytes);
  /// Forgets a region. Requests that use it still finish. Does nothing if there is no such region.
  void remove(const std::string& name);
  void remove_all();
  /// Returns the regions in the order of their names.
  /// Params: name – "": all
  /// Throws: RequestError with status 404 if there is no region with this name
  std::vector<std::shared_ptr<const SharedRegion>> regions(const std::string& name = "") const;
  /// Returns a part of a region.
  /// Params: what – such as "input \"x\"", for error messages
  /// Throws: RequestError with status 400 if there is no such region, if the part is not inside of it,
  ///         or if it is too large
  RegionPart part(const std::string& what, const std::string& name, uint64_t offset, uint64_t bytes) const;

 private:
  static constexpr size_t most_regions = 4096;  ///< each of them uses a file descriptor

  const uint64_t max_part_bytes_;
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<const SharedRegion>> regions_ BELLOWS_GUARDED_BY(mutex_){};
};

/// Answers a call of the extension's HTTP URLs.
/// Params:  region – name in the URL; "" without one
///          action – "status", "register" or "unregister"
///          body   – JSON object of "register" with key, offset and byte_size
/// Returns: a JSON array for "status", and otherwise an empty text
/// Throws:  RequestError
std::string shared_memory_call(SharedMemory& memory, const std::string& region, const std::string& action,
                               const std::string& body);

}  // namespace bellows::serve
