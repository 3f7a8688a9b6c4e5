#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/optim/state/offloaded_state.h"
#include "bellows/optim/state/state_file.h"
#include "bellows/parallel/zero/shard_layout.h"

namespace bellows::parallel {

/// An unlinked temporary file with one region per bucket, which is mapped into memory. Between two uses, the data of a
/// bucket are only in the file.
/// Threads: one thread at a time
class BucketFile {
 public:
  /// Params: bytes – size of each bucket's region
  ///         window_bytes – limit for the bytes that wait to be written
  /// Throws: c10::Error if the folder does not exist or its disk has too little space
  BucketFile(const std::vector<int64_t>& bytes, const std::string& folder, int64_t window_bytes,
             const std::string& user);

  /// Returns a tensor [count] in the bucket's region, which reads as zeros at first.
  /// Params: offset – in bytes, from the start of the region
  at::Tensor tensor(size_t bucket, int64_t offset, int64_t count, const at::TensorOptions& options) const;
  /// Starts to read a bucket, and does not wait for it.
  void fetch(size_t bucket) const { file_->fetch(parts_[bucket]); }
  /// Starts to write a bucket back and to remove it from memory, in the background. Its tensors can be used again at
  /// any time.
  /// Throws: c10::Error if the disk failed earlier
  void finish(size_t bucket) { writer_->give(parts_[bucket]); }
  void wait() { writer_->wait(); }
  optim::OffloadedStateStats stats() const;

 private:
  std::vector<optim::FilePart> parts_;
  std::shared_ptr<optim::StateFile> file_;
  std::unique_ptr<optim::StateWriter> writer_;
};

/// The memory for the shards of the parameters.
struct ShardMemory {
  bool host = false;                      ///< page-locked memory of the host, also for parameters on an accelerator
  std::shared_ptr<BucketFile> file = {};  ///< null: the shards are in memory

  /// Returns zeros [slice] for Unit::shard.
  at::Tensor allocate(const Layout& layout, size_t unit) const;
  /// Call this function after you have used a shard.
  void finish(size_t unit) const {
    if (file) file->finish(unit);
  }
  void fetch(size_t unit) const {
    if (file) file->fetch(unit);
  }
};

/// Runs an optimizer's step bucket by bucket, so that only the shards, gradients and state of a few buckets are in
/// memory. The gradients are freed.
/// Numerics: exact for elementwise optimizers
class BucketSteps {
 public:
  /// Params: parameters, gradients – files of the shards; null: they are in memory
  BucketSteps(torch::optim::Optimizer& optimizer, Layout& layout, std::shared_ptr<BucketFile> parameters,
              std::shared_ptr<BucketFile> gradients);

  /// Keeps the optimizer's state in a file, too.
  /// Throws: like optim::StepInBackward with `offload_state`
  void offload_state(const std::string& folder, int64_t window_bytes);
  /// Call this function after the optimizer has loaded state.
  void state_loaded();
  /// Params: grad_scale, found_inf – see ScaledStep; undefined tensors if there are none
  void step(const at::Tensor& grad_scale, const at::Tensor& found_inf);
  /// Updates the parameters of one trained bucket only.
  void step_bucket(size_t bucket, const at::Tensor& grad_scale = {}, const at::Tensor& found_inf = {});
  /// Waits until all data are written.
  void wait();
  optim::OffloadedStateStats stats() const;

 private:
  /// The parameters of a bucket in each group.
  using Lists = std::vector<std::vector<at::Tensor>>;

  void step(Lists& lists, const at::Tensor& grad_scale, const at::Tensor& found_inf);

  torch::optim::Optimizer& optimizer_;
  Layout& layout_;
  const std::shared_ptr<BucketFile> parameters_, gradients_;
  std::vector<Lists> buckets_;  ///< of the trained buckets
  Lists rest_;                  ///< the parameters that are not sharded
  std::unique_ptr<optim::OffloadedState> state_;
};

/// Calls `create` on every rank. If it throws on one rank, all ranks throw. Collective.
void create_on_all_ranks(const comm::Group& ranks, const std::function<void()>& create);

}  // namespace bellows::parallel
