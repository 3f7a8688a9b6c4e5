#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bellows/tap/saved_tensor_tap.h"

namespace bellows::recompute {

/// The place where saved tensors are kept until backward.
enum class OffloadTo {
  host,  ///< page-locked host memory, for tensors of an accelerator. CPU tensors are not moved
  file,  ///< an unlinked temporary file. It is deleted however the process ends
};

struct OffloadOptions {
  OffloadTo to = OffloadTo::file;
  std::string folder;         ///< folder of the file; empty: $TMPDIR, or /tmp. On some systems, /tmp is in memory
  int64_t reserve_bytes = 0;  ///< disk space that is reserved when the guard is created
  /// Maximum memory of tensors in transit to the file, and the same amount for tensors in transit back.
  int64_t in_flight_bytes = 256 << 20;
  int64_t min_bytes = 64 << 10;  ///< smaller tensors are not offloaded
  /// Tensors that stay in memory anyway and require no gradient, such as frozen weights and buffers. Tensors that share
  /// their memory are not offloaded.
  std::vector<at::Tensor> leave = {};
};

/// Statistics of offloading so far.
struct OffloadStats {
  int64_t tensors = 0, bytes = 0;  ///< offloaded tensors and their bytes
  int64_t file_bytes = 0;          ///< largest size of the file; reserve this much for similar steps
  int64_t read_in_time = 0;        ///< tensors that were available when backward requested them
  int64_t waited = 0;              ///< waits of backward for a tensor, and of forward for a slow disk
};

/// While the guard lives on a thread, tensors that autograd saves for backward are moved out of memory, or off the
/// accelerator, and return before backward needs them. Put it around the forward pass of each step, or around the whole
/// training. Then the file is created only once.
///
/// With a file, a thread writes during the forward pass. A tensor that backward needs before it is written stays in
/// memory. In backward, the thread reads ahead, in the reverse order of forward. `reserve_bytes` are allocated on disk
/// when the guard is created, so that a full disk is detected before the first step. A step that needs more allocates
/// it, or fails. Memory and file space are reused only after all of their readers have finished.
/// Numerics: exact
/// Cost:     copies each tensor twice. Written pages stay in the system's page cache until the system writes them out.
/// Threads:  affects the thread that creates it; create and destroy the guard on the same thread. Backward may run on
///           any thread.
/// Throws:   c10::ValueError if an option is out of range; c10::Error if the folder does not exist, or if the disk has
///           less than `reserve_bytes` free (the message gives both figures). In a step: if the disk is full or fails;
///           the tensors are still in memory then
/// Ref:      torch.autograd.graph.save_on_cpu; arXiv:2104.07857 (ZeRO-Infinity)
class OffloadGuard {
 public:
  explicit OffloadGuard(const OffloadOptions& options = {});
  ~OffloadGuard();
  OffloadGuard(const OffloadGuard&) = delete;
  OffloadGuard& operator=(const OffloadGuard&) = delete;

  OffloadStats stats() const;
  /// Waits until all tensors offloaded so far are written.
  /// Throws: c10::Error if the disk fails
  void wait() const;

  class Tap;

 private:
  std::shared_ptr<Tap> tap_;
  tap::SavedTensorGuard guard_;
};

}  // namespace bellows::recompute
