#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace bellows::tap {

/// What a client keeps in place of a tensor that autograd saved for backward.
class PackedTensor {
 public:
  virtual ~PackedTensor() = default;
  /// The tensor again, of the same sizes. Dtype, device and strides may differ: they are restored afterwards.
  /// Called in backward, once for each place that saved the tensor, in no-grad mode, on whichever thread runs the node.
  virtual at::Tensor unpack() = 0;
};

/// Sees every tensor that autograd saves for backward, and may keep something else in its place.
///
/// Three rules are kept by the tap, not by its clients:
/// - A tensor saved more than once (same storage, version and view) is packed once, while the first PackedTensor lives,
///   if the client wants it so.
/// - Parameters (leaves that require gradients) and views of them are left alone: they exist anyway. So are tensors
///   without strided storage (sparse, oneDNN's) and those whose elements overlap in memory other than by expand().
/// - The unpacked tensor has the dtype, device and strides of the saved one. Of an expanded tensor, client and memory
///   see each element once: dimensions of stride 0 arrive with size 1.
/// A saved tensor that is modified in place before backward raises the same error as without a tap, packed or not.
/// Threads: called on each thread where it is installed, or carried to: autograd's workers, tap::ContextGuard. Calls
///          may be concurrent.
class SavedTensorTap {
 public:
  virtual ~SavedTensorTap() = default;
  /// Called while an operator records its backward, in no-grad mode. `tensor` is detached and shares the saved one's
  /// storage; modifying it raises.
  /// Returns: null – not wanted: the next outer client is asked; the last one's null keeps the tensor as it is
  virtual std::shared_ptr<PackedTensor> pack(const at::Tensor& tensor) = 0;
  /// False: it gets a tensor as often as it is saved. For clients that count: what was one memory in one run may be two
  /// in another.
  virtual bool packs_once() const { return true; }
};

/// Installs a client on this thread while it lives. Several nest: the innermost is asked first, the first that packs
/// wins. What was packed is unpacked also after the guard's end.
/// Threads: make and destroy it on one thread, in nested order; otherwise it still ends, and the log says so.
class SavedTensorGuard {
 public:
  /// Throws: c10::ValueError – null; c10::Error – as install_saved_tensor_taps
  explicit SavedTensorGuard(std::shared_ptr<SavedTensorTap> tap);
  ~SavedTensorGuard();
  SavedTensorGuard(const SavedTensorGuard&) = delete;
  SavedTensorGuard& operator=(const SavedTensorGuard&) = delete;

 private:
  std::shared_ptr<void> node_;
};

/// A client lives on this thread: what is saved now may be kept in another form than as it is.
bool saved_tensor_tap_installed();

/// Inside PackedTensor::unpack(): the backward pass records a graph of itself (create_graph), for a second derivative.
bool unpacking_for_graph();

/// Makes the process's autograd engine one that knows saved-tensor taps; it goes on with the threads of the present
/// one. Each guard does it; cheap when done.
/// Threads: call it, or make the first guard, before other threads run backward passes
/// Throws:  c10::Error – another engine is in place (Python's, in a process that loads Python's torch)
void install_saved_tensor_taps();

/// True when another part of the process has put its own autograd engine in place: no saved-tensor tap can work.
bool foreign_autograd_engine();

}  // namespace bellows::tap
