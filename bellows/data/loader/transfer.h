#pragma once

#include "bellows/data/loader/batch.h"

#include <c10/core/Allocator.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <deque>
#include <memory>
#include <optional>

namespace bellows::data {

/// Copies batches to an accelerator on a separate stream, overlapping with computation on the device.
///
/// It uses libtorch's device-independent streams and events; nothing here is specific to CUDA. A batch's host memory is
/// held until its copy is done. Tested with a simulated device whose streams run late (tests/data/late_device.h); not
/// yet on a GPU.
/// Threads: one owner
/// Ref:     torch.utils.data.DataLoader(pin_memory=True) with non_blocking copies; the data prefetcher of apex
class Transfer {
 public:
  explicit Transfer(c10::Device device);
  /// Waits for the copies in progress.
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Returns the allocator of memory for asynchronous copies: pinned memory, or the default allocator if the device has
  /// none.
  static c10::Allocator* host_allocator(c10::Device device);

  /// Starts the copy of a batch. If the device has no memory for it, `batch` is unchanged.
  void begin(Batch&& batch);
  /// True if copies were started and not yet returned.
  bool pending() const { return !flights_.empty(); }
  /// Returns the batch that was started first, on the device. Later work on the calling thread's current stream runs
  /// after the copy.
  Batch finish();
  /// Discards the batches that were started. Their memory is held until the copies are done.
  void abandon();
  /// Releases host memory whose copy is done.
  void collect();

 private:
  struct Flight {
    Batch host, device;
    c10::Event done;
  };

  const c10::Device device_;
  const c10::Stream stream_;
  std::deque<Flight> flights_;  // started
  std::deque<Flight> landed_;   // returned; the copy may not be done yet
};

}  // namespace bellows::data
