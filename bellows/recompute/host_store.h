#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <map>
#include <optional>

#include "bellows/core/mutex.h"
#include "bellows/recompute/offload.h"

namespace bellows::recompute::detail {

class HostStore;

/// An accelerator tensor that was moved to page-locked host memory. A copy to or from the host may still be in
/// progress.
class HostTensor final : public tap::PackedTensor {
 public:
  HostTensor(std::shared_ptr<HostStore> store, const at::Tensor& tensor, int64_t number);
  ~HostTensor() override;
  at::Tensor unpack() override;

 private:
  friend class HostStore;
  void bring() BELLOWS_NO_THREAD_SAFETY_ANALYSIS;  ///< callers hold the lock of the store

  const std::shared_ptr<HostStore> store_;
  const int64_t number_;
  const c10::Device device_;
  at::Tensor host_;
  at::Tensor back_;  ///< the copy on the device, which may still be in progress
  std::optional<c10::Event> done_;
};

/// Offloaded tensors in the order in which forward saved them. Copies run on a separate stream, in parallel with the
/// computation.
/// Threads: thread-safe
class HostStore : public std::enable_shared_from_this<HostStore> {
 public:
  explicit HostStore(int64_t in_flight_bytes) : in_flight_bytes_(in_flight_bytes) {}
  std::shared_ptr<tap::PackedTensor> put(const at::Tensor& tensor);
  OffloadStats stats() const;

 private:
  friend class HostTensor;
  c10::Stream copies(c10::Device device) BELLOWS_REQUIRES(mutex_);
  void read_ahead(int64_t before) BELLOWS_REQUIRES(mutex_);

  const int64_t in_flight_bytes_;
  mutable RecursiveMutex mutex_;
  std::map<int64_t, HostTensor*> items_ BELLOWS_GUARDED_BY(mutex_);
  std::map<c10::Device, c10::Stream, bool (*)(const c10::Device&, const c10::Device&)> streams_
      BELLOWS_GUARDED_BY(mutex_){[](const c10::Device& a, const c10::Device& b) { return a.index() < b.index(); }};
  int64_t next_number_ BELLOWS_GUARDED_BY(mutex_) = 0;
  int64_t reading_bytes_ BELLOWS_GUARDED_BY(mutex_) = 0;
  OffloadStats stats_ BELLOWS_GUARDED_BY(mutex_);
};

}  // namespace bellows::recompute::detail
