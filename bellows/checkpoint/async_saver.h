#pragma once

#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/checkpoint/folder.h"

namespace bellows::checkpoint {

/// Saves checkpoints while training goes on: the state is copied on the caller's thread and written on another. At most
/// one save is in flight; the next one waits for it.
/// Numerics: the files are byte for byte those of Folder::save()
/// Cost:     memory for one copy of the state, used again by the next save; the caller's time is that of the copy, and
///           of the wait where the disk is slower than the checkpoints come
/// Threads:  one owner. From save() until wait() the folder belongs to the saver, and must outlive it
class AsyncSaver {
 public:
  AsyncSaver() = default;
  /// Waits. An error that nobody asked for is logged.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  /// As Folder::save(), in the background. The state may change as soon as this returns.
  /// Throws: what the save before threw in the background; then nothing is begun
  void save(Folder& folder, const State& state);

  /// As Folder::save_best(), in the background. Returns whether it is among the best; if not, nothing is copied.
  /// Throws: as save(); c10::ValueError – k < 1
  bool save_best(Folder& folder, const State& state, double score, int64_t k);

  /// Returns when nothing is in flight: the last checkpoint is on disk.
  /// Throws: what the save in flight threw
  void wait();

  /// How long save(), save_best() and wait() have waited for the disk, in all.
  double waited_s() const { return waited_s_; }

 private:
  State copy(const State& state);
  NamedTensors copy(const NamedTensors& tensors);
  at::Tensor copy(const at::Tensor& tensor);

  std::vector<at::Tensor> buffers_;                             ///< bytes of the state's storages, in order
  std::unordered_map<const c10::StorageImpl*, size_t> copied_;  ///< which buffer holds it, during a copy
  double waited_s_ = 0;
  std::future<void> in_flight_;  ///< last: it ends before what it reads
};

}  // namespace bellows::checkpoint
