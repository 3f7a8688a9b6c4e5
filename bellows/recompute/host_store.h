#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <map>
#include <mutex>
#include <optional>

#include "bellows/recompute/offload.h"

namespace bellows::recompute::detail {

class HostStore;

/// A tensor of an accelerator that is in page-locked host memory, or in transit to or from there.
class HostTensor final : public tap::PackedTensor {
 public:
  HostTensor(std::shared_ptr<HostStore> store, const at::Tensor& tensor, int64_t number);
  ~HostTensor() override;
  at::Tensor unpack() override;

 private:
  friend class HostStore;
  void bring();

  const std::shared_ptr<HostStore> store_;
  const int64_t number_;
  const c10::Device device_;
  at::Tensor host_;
  at::Tensor back_;  ///< the copy on the device, possibly still in transit
  std::optional<c10::Event> done_;
};

/// Offloaded tensors in the order of forward. Copies run on a separate stream, in parallel to the computation.
/// Threads: safe
class HostStore : public std::enable_shared_from_this<HostStore> {
 public:
  explicit HostStore(int64_t in_flight_bytes) : in_flight_bytes_(in_flight_bytes) {}
  std::shared_ptr<tap::PackedTensor> put(const at::Tensor& tensor);
  OffloadStats stats() const;

 private:
  friend class HostTensor;
  c10::Stream copies(c10::Device device);
  void read_ahead(int64_t before);

  const int64_t in_flight_bytes_;
  mutable std::recursive_mutex mutex_;
  std::map<int64_t, HostTensor*> items_;
  std::map<c10::Device, c10::Stream, bool (*)(const c10::Device&, const c10::Device&)> streams_{
      [](const c10::Device& a, const c10::Device& b) { return a.index() < b.index(); }};
  int64_t next_number_ = 0, reading_bytes_ = 0;
  OffloadStats stats_;
};

}  // namespace bellows::recompute::detail
