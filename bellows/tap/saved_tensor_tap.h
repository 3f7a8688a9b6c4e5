#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace bellows::tap {

/// The replacement that a client keeps for a tensor that autograd saved for backward.
class PackedTensor {
 public:
  virtual ~PackedTensor() = default;
  /// Returns: the tensor in the same sizes. Dtype, device and strides may differ; the tap restores them.
  /// Called in backward once for each place that saved the tensor, in no-grad mode, on the thread that runs the node.
  virtual at::Tensor unpack() = 0;
};

/// Receives every tensor that autograd saves for backward and may replace it.
///
/// The tap itself enforces these rules:
/// - A tensor that is saved several times (same storage, version and view) is packed once, as long as the first
///   PackedTensor lives. A client can turn this off by packs_once().
/// - Parameters (leaves that require gradients) and views of them are not passed to the client, because they stay in
///   memory anyway. The same applies to tensors without strided storage (sparse, oneDNN), and to tensors whose elements
///   overlap in memory other than by expand().
/// - The unpacked tensor gets the dtype, device and strides of the saved one. Expanded tensors are packed with each
///   element once: dimensions of stride 0 arrive with size 1.
/// If a saved tensor is modified in place before backward, the same error is raised as without a tap, packed or not.
/// Threads: called on each thread where it is installed or to which its context was carried (autograd's workers,
///          tap::ContextGuard). Calls may be concurrent.
class SavedTensorTap {
 public:
  virtual ~SavedTensorTap() = default;
  /// Called in no-grad mode while an operator records its backward. `tensor` is detached and shares the storage of the
  /// saved tensor; libtorch throws if the client modifies it in place.
  /// Returns: the replacement, or null to decline. Then the next outer client is called. If all decline, the tensor is
  ///          saved unchanged.
  virtual std::shared_ptr<PackedTensor> pack(const at::Tensor& tensor) = 0;
  /// If false, the client receives a tensor each time it is saved. For clients that count saved tensors: two tensors
  /// can share memory in one run and not in another.
  virtual bool packs_once() const { return true; }
};

/// Installs a client on this thread while the guard lives. Clients can nest: the innermost is called first, and the
/// first one that packs a tensor replaces it. Packed tensors are unpacked even after the guard's end.
/// Threads: create and destroy the guard on the same thread, in nested order. Otherwise it still ends, and an error is
///          logged.
class SavedTensorGuard {
 public:
  /// Throws: c10::ValueError if `tap` is null; c10::Error as install_saved_tensor_taps()
  explicit SavedTensorGuard(std::shared_ptr<SavedTensorTap> tap);
  ~SavedTensorGuard();
  SavedTensorGuard(const SavedTensorGuard&) = delete;
  SavedTensorGuard& operator=(const SavedTensorGuard&) = delete;

 private:
  std::shared_ptr<void> node_;
};

/// True if a client is installed on this thread, so that saved tensors may be replaced.
bool saved_tensor_tap_installed();

/// True inside PackedTensor::unpack() if the backward pass records its own graph (create_graph) for a second
/// derivative.
bool unpacking_for_graph();

/// Replaces the process's autograd engine by one that supports saved-tensor taps. The new engine reuses the threads of
/// the current one. Each guard calls this function; further calls are cheap.
/// Threads: call it, or create the first guard, before other threads run backward passes
/// Throws:  c10::Error if another engine is installed (Python's, in a process that loads Python's torch)
void install_saved_tensor_taps();

/// True if another part of the process has installed its own autograd engine. Then no saved-tensor tap can work.
bool foreign_autograd_engine();

}  // namespace bellows::tap
