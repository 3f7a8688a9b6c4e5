#pragma once

#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/checkpoint/folder.h"

namespace bellows::checkpoint {

/// Saves checkpoints in the background: copies the state on the caller's thread and writes it on another thread. At
/// most one save is in flight; the next one waits for it.
/// Numerics: the files are byte-identical to those of Folder::save()
/// Cost:     memory for one copy of the state, which the next save reuses. The caller waits for the copy, and for the
///           previous save if that is still in flight
/// Threads:  one owner. Between save() and wait(), only the saver uses the folder, which must outlive it
class AsyncSaver {
 public:
  AsyncSaver() = default;
  /// Waits for the save in flight. Logs an error that was not reported yet.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  /// Like Folder::save(), in the background. The state may change as soon as this call returns.
  /// Throws: the error of the previous save; then no new save is started
  void save(Folder& folder, const State& state);

  /// Like Folder::save_best(), in the background. Returns whether the state is among the best; otherwise, nothing is
  /// copied.
  /// Throws: like save(); c10::ValueError if k < 1
  bool save_best(Folder& folder, const State& state, double score, int64_t k);

  /// Waits until the save in flight is on disk.
  /// Throws: the error of the save in flight
  void wait();

  /// Total time that save(), save_best() and wait() have waited for the disk.
  double waited_s() const { return waited_s_; }

 private:
  State copy(const State& state);
  NamedTensors copy(const NamedTensors& tensors);
  at::Tensor copy(const at::Tensor& tensor);

  std::vector<at::Tensor> buffers_;                             ///< bytes of the state's storages, in order
  std::unordered_map<const c10::StorageImpl*, size_t> copied_;  ///< buffer index of each storage, during a copy
  double waited_s_ = 0;
  std::future<void> in_flight_;  ///< last member, so that it ends before the buffers that it reads
};

}  // namespace bellows::checkpoint
