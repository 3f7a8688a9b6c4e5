#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace bellows::tap {

/// A client's replacement for a tensor that autograd saved for backward.
class PackedTensor {
 public:
  virtual ~PackedTensor() = default;
  /// Returns a tensor with the sizes of the packed tensor. Dtype, device and strides may differ, because the tap
  /// restores them. This function is called in backward, once for each place that saved the tensor. It runs in no-grad
  /// mode, on the thread that runs the autograd node.
  virtual at::Tensor unpack() = 0;
};

/// Receives every tensor that autograd saves for backward, and may replace it.
///
/// The tap enforces these rules:
/// - A tensor that is saved several times (same storage, version and view) is packed once while the first PackedTensor
///   exists. A client can turn this off with packs_once().
/// - Parameters (leaves that require gradients) and views of parameters are not passed to the client, because they stay
///   in memory anyway.
/// - Tensors without strided storage (sparse, oneDNN) are not passed to the client. The same applies to tensors whose
///   elements overlap in memory, unless expand() alone causes the overlap.
/// - The unpacked tensor receives the dtype, device and strides of the saved tensor. In expanded tensors, dimensions
///   with stride 0 are reduced to size 1, so that each element is packed only once.
///
/// If a saved tensor is modified in place before backward, the same error is raised as without a tap.
/// Threads: called on each thread where the tap is installed or to which its context was carried (autograd's workers,
///          tap::ContextGuard). Calls may be concurrent
class SavedTensorTap {
 public:
  virtual ~SavedTensorTap() = default;
  /// Called in no-grad mode while an operator records its backward. `tensor` is detached and shares the storage of the
  /// saved tensor. libtorch throws if the client modifies it in place.
  /// Returns: the replacement, or null to decline. If a client declines, the next outer client is called. If all
  ///          clients decline, the tensor is saved unchanged
  virtual std::shared_ptr<PackedTensor> pack(const at::Tensor& tensor) = 0;
  /// Return false to receive a tensor each time it is saved. Clients that count saved tensors need this. Two saved
  /// tensors can share memory in one run and not in another run, so the count would otherwise differ.
  virtual bool packs_once() const { return true; }
};

/// Installs a client on this thread while the guard exists. If clients are nested, the innermost client is called
/// first. The first client that packs a tensor replaces it. Packed tensors are unpacked even after the guard has ended.
/// Threads: create and destroy guards on the same thread and in nested order. If you do not, the guard still ends, but
///          logs an error
class SavedTensorGuard {
 public:
  /// Throws: c10::ValueError if `tap` is null; c10::Error if install_saved_tensor_taps() throws it
  explicit SavedTensorGuard(std::shared_ptr<SavedTensorTap> tap);
  ~SavedTensorGuard();
  SavedTensorGuard(const SavedTensorGuard&) = delete;
  SavedTensorGuard& operator=(const SavedTensorGuard&) = delete;

 private:
  std::shared_ptr<void> node_;
};

/// Returns whether a client is installed on this thread, so that saved tensors may be replaced.
bool saved_tensor_tap_installed();

/// Returns true inside PackedTensor::unpack() if the backward pass records a graph for second derivatives
/// (create_graph).
bool unpacking_for_graph();

/// Replaces the process's autograd engine with an engine that supports saved-tensor taps. The new engine reuses the
/// threads of the current engine. Each guard calls this function. Further calls are cheap.
/// Threads: call this function, or create the first guard, before other threads run backward passes
/// Throws:  c10::Error if a different engine is installed, such as Python's engine in a process that loads Python's
///          torch
void install_saved_tensor_taps();

/// Returns whether another part of the process has installed its own autograd engine. Saved-tensor taps then do not
/// work.
bool foreign_autograd_engine();

}  // namespace bellows::tap
