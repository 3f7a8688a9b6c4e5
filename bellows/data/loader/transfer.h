#pragma once

#include "bellows/data/loader/batch.h"

#include <c10/core/Allocator.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <deque>
#include <memory>
#include <optional>

namespace bellows::data {

/// Copies batches to an accelerator on a separate stream, so that copies overlap with computation on the device.
///
/// The class uses libtorch's device-independent streams and events, and nothing in it is specific to CUDA. The host
/// memory of a batch is held until its copy is complete. Tests use a simulated device whose streams run with a delay
/// (tests/data/late_device.h). The class has not yet been tested on a GPU.
/// Threads: use it from one thread only
/// Ref:     torch.utils.data.DataLoader(pin_memory=True) with non_blocking copies; the data prefetcher of apex
class Transfer {
 public:
  explicit Transfer(c10::Device device);
  /// Waits for the running copies.
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Returns the allocator for memory that can be copied asynchronously. This is pinned memory, or the default CPU
  /// allocator if the device does not support pinned memory.
  static c10::Allocator* host_allocator(c10::Device device);

  /// Starts the copy of a batch. If the device does not have enough memory, `batch` is unchanged.
  void begin(Batch&& batch);
  /// Returns true if begin() was called for a batch that finish() has not yet returned.
  bool pending() const { return !flights_.empty(); }
  /// Returns the device copy of the batch that was started first. Later work on the current stream of the calling
  /// thread runs after the copy.
  Batch finish();
  /// Discards the batches that were started. Their memory is held until the copies are complete.
  void abandon();
  /// Releases the host memory of the copies that are complete.
  void collect();

 private:
  struct Flight {
    Batch host, device;
    c10::Event done;
  };

  const c10::Device device_;
  const c10::Stream stream_;
  std::deque<Flight> flights_;  // started, but not yet returned
  std::deque<Flight> landed_;   // returned, but the copy may still be running
};

}  // namespace bellows::data
