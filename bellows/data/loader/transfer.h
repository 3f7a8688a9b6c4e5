#pragma once

#include "bellows/data/loader/batch.h"

#include <c10/core/Allocator.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <deque>
#include <memory>
#include <optional>

namespace bellows::data {

/// Copies batches to an accelerator on a stream of its own, beside what the device computes.
///
/// It goes through libtorch's streams and events, which are the same for all devices: nothing here is CUDA's own. A
/// batch's memory on the host is held until its copy is done. Tested with a device whose streams run late
/// (tests/data/late_device.h); not yet on a GPU.
/// Threads: one owner
/// Ref:     torch.utils.data.DataLoader(pin_memory=True) with non_blocking copies; apex' data prefetcher
class Transfer {
 public:
  explicit Transfer(c10::Device device);
  /// Waits for the copies in progress.
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Where memory comes from that copies need not wait for: pinned, or the usual where the device has none.
  static c10::Allocator* host_allocator(c10::Device device);

  /// Begins the copy of a batch. Where the device has no memory for it, `batch` is as it was.
  void begin(Batch&& batch);
  /// Copies begun and not yet handed out.
  bool pending() const { return !flights_.empty(); }
  /// The batch begun first, on the device: what the calling thread's current stream does from now on comes after the
  /// copy.
  Batch finish();
  /// Forgets the batches that were begun; their memory is held until the copies are done.
  void abandon();
  /// Lets go of host memory whose copy is done.
  void collect();

 private:
  struct Flight {
    Batch host, device;
    c10::Event done;
  };

  const c10::Device device_;
  const c10::Stream stream_;
  std::deque<Flight> flights_;  // begun
  std::deque<Flight> landed_;   // handed out; the copy may not be done
};

}  // namespace bellows::data
