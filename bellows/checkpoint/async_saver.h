#pragma once

#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/checkpoint/folder.h"

namespace bellows::checkpoint {

/// Saves checkpoints in the background. The state is copied on the caller's thread and written on another thread. At
/// most one save is in progress at a time. The next save waits until the current save has finished.
/// Numerics: the files are byte-identical to those of Folder::save()
/// Cost:     memory for one copy of the state, which the next save reuses. The caller waits for the copy and, if the
///           previous save is still in progress, for that save
/// Threads:  not thread-safe. Between save() and wait(), only the saver may use the folder. The folder must outlive the
///           saver
class AsyncSaver {
 public:
  AsyncSaver() = default;
  /// Waits for the save in progress. If it fails with an error that was not reported yet, the error is logged.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  /// Like Folder::save(), but in the background. The state may change as soon as this call returns.
  /// Throws: the error of the previous save. In this case, no new save starts
  void save(Folder& folder, const State& state);

  /// Like Folder::save_best(), but in the background. Returns whether the state is among the best. If it is not,
  /// nothing is copied.
  /// Throws: like save(); c10::ValueError if `k` is below 1
  bool save_best(Folder& folder, const State& state, double score, int64_t k);

  /// Waits until the save in progress is on disk.
  /// Throws: the error of this save
  void wait();

  /// Returns the total time in seconds that save(), save_best() and wait() have waited for the disk.
  double waited_s() const { return waited_s_; }

 private:
  State copy(const State& state);
  NamedTensors copy(const NamedTensors& tensors);
  at::Tensor copy(const at::Tensor& tensor);

  std::vector<at::Tensor> buffers_;                             ///< contents of the state's storages, in order
  std::unordered_map<const c10::StorageImpl*, size_t> copied_;  ///< during a copy, the buffer index of each storage
  double waited_s_ = 0;
  std::future<void> in_flight_;  ///< last member, so that the save ends before the buffers that it reads are destroyed
};

}  // namespace bellows::checkpoint
