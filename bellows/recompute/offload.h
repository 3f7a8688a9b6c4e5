#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bellows/tap/saved_tensor_tap.h"

namespace bellows::recompute {

/// Where saved tensors are stored until backward.
enum class OffloadTo {
  /// Page-locked host memory, for tensors on an accelerator. CPU tensors are not moved.
  host,
  /// An unlinked temporary file. The system deletes it when the process ends for any reason.
  file,
};

struct OffloadOptions {
  OffloadTo to = OffloadTo::file;
  /// Folder of the file. If empty, $TMPDIR is used, or else /tmp. On some systems, /tmp is in memory.
  std::string folder;
  int64_t reserve_bytes = 0;  ///< bytes on disk that are reserved when the guard is created
  /// Limit for the total size of tensors that are waiting to be written. A second limit of the same size applies to
  /// tensors that are read back.
  int64_t in_flight_bytes = 256 << 20;
  int64_t min_bytes = 64 << 10;  ///< smaller tensors are not offloaded
  /// Tensors that stay in memory anyway and require no gradient, such as frozen weights and buffers. Tensors that share
  /// memory with them are not offloaded.
  std::vector<at::Tensor> leave = {};
};

/// Statistics of a guard since it was created.
struct OffloadStats {
  int64_t tensors = 0, bytes = 0;  ///< number of offloaded tensors, and their size
  /// Largest size of the file. For similar steps, use this value as `reserve_bytes`.
  int64_t file_bytes = 0;
  int64_t read_in_time = 0;  ///< number of tensors that were available when backward requested them
  int64_t waited = 0;        ///< number of times that backward waited for a tensor or forward waited for a slow disk
};

/// While this guard exists on a thread, the tensors that autograd saves for backward are moved to a file, or from the
/// accelerator to host memory. They are moved back before backward needs them. Create one guard around the forward pass
/// of each step or, to create the file only once, around the complete training.
///
/// With a file, a separate thread writes the tensors during the forward pass. If backward needs a tensor that is not
/// yet written, the tensor stays in memory. In backward, the same thread reads tensors before they are needed, in the
/// reverse order of forward. `reserve_bytes` bytes are allocated on disk when the guard is created, so a full disk is
/// detected before the first step. A step that needs more space allocates it, and fails if the disk is full. Memory and
/// file space are reused only after all of their readers have finished.
/// Numerics: exact
/// Cost:     each tensor is copied twice. Written pages stay in the system's page cache until the system writes them to
///           disk.
/// Threads:  affects the thread that creates the guard; create and destroy it on the same thread. Backward may run on
///           any thread.
/// Throws:   c10::ValueError if an option is out of range. c10::Error if the folder does not exist, or if fewer than
///           `reserve_bytes` bytes are free on disk (the message states both numbers). A step throws c10::Error if the
///           disk is full or fails; its tensors are then still in memory
/// Ref:      torch.autograd.graph.save_on_cpu; arXiv:2104.07857 (ZeRO-Infinity)
class OffloadGuard {
 public:
  explicit OffloadGuard(const OffloadOptions& options = {});
  ~OffloadGuard();
  OffloadGuard(const OffloadGuard&) = delete;
  OffloadGuard& operator=(const OffloadGuard&) = delete;

  OffloadStats stats() const;
  /// Waits until all tensors that were offloaded so far are written.
  /// Throws: c10::Error if the disk fails
  void wait() const;

  class Tap;

 private:
  std::shared_ptr<Tap> tap_;
  tap::SavedTensorGuard guard_;
};

}  // namespace bellows::recompute
