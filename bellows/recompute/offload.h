#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bellows/tap/saved_tensor_tap.h"

namespace bellows::recompute {

/// Where saved tensors wait for backward.
enum class OffloadTo {
  host,  ///< of an accelerator: page-locked memory of the host. Tensors of the CPU are there already: left alone
  file,  ///< a nameless file, of which nothing stays behind, however the process ends
};

struct OffloadOptions {
  OffloadTo to = OffloadTo::file;
  std::string folder;         ///< of the file; empty: $TMPDIR, or /tmp. Some systems keep /tmp in memory
  int64_t reserve_bytes = 0;  ///< room on the disk that is taken when the guard is made
  int64_t in_flight_bytes =
      256 << 20;                 ///< most memory of tensors on their way to the file, and again on their way back
  int64_t min_bytes = 64 << 10;  ///< smaller tensors stay where they are
  /// What lives anyway and requires no gradient: frozen weights, buffers. Tensors in their memory stay where they are.
  std::vector<at::Tensor> leave = {};
};

/// What offloading did so far.
struct OffloadStats {
  int64_t tensors = 0, bytes = 0;  ///< packed
  int64_t file_bytes = 0;          ///< the most that the file held: what to reserve for such steps
  int64_t read_in_time = 0;        ///< tensors that lay ready when backward asked for them
  int64_t waited = 0;              ///< tensors that backward, or forward behind a slow disk, had to wait for
};

/// While the guard lives on a thread, tensors that autograd saves for backward leave memory, or the accelerator, and come
/// back before backward reaches them. Put it around the forward pass of each step, or around the whole of training: then
/// the file is made once.
///
/// To a file, a thread writes while forward goes on; a tensor that backward wants before it is written is simply kept.
/// In backward the thread reads ahead, in the reverse order of forward. `reserve_bytes` is taken from the disk when the
/// guard is made, so that a step does not find it full; a step that needs more takes it, or fails. Nothing is written
/// over before its readers are done with it.
/// Numerics: exact
/// Cost:     each tensor is copied twice. Written pages are the system's cache until it writes them out
/// Threads:  sees the thread that makes it; make and destroy it on one thread. Backward may run on any
/// Throws:   c10::ValueError – an option out of range; c10::Error – no such folder, not enough room for `reserve_bytes`
///           (both figures). In a step: a full disk, a failing one; the tensors are still in memory then
/// Ref:      torch.autograd.graph.save_on_cpu; arXiv:2104.07857 (ZeRO-Infinity)
class offload {
 public:
  explicit offload(const OffloadOptions& options = {});
  ~offload();
  offload(const offload&) = delete;
  offload& operator=(const offload&) = delete;

  OffloadStats stats() const;
  /// Until everything packed so far is written.
  /// Throws: c10::Error – a disk error
  void wait() const;

  class Tap;

 private:
  std::shared_ptr<Tap> tap_;
  tap::SavedTensorGuard guard_;
};

}  // namespace bellows::recompute
