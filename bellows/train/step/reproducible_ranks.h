#pragma once

#include <cstdint>
#include <vector>

#include "bellows/train/job.h"
#include "bellows/train/step/ranks.h"

namespace bellows::train {

/// Makes the weights independent of the number of ranks (recipe key `reproducible_ranks`). Each batch is divided into a
/// fixed number of parts. A rank processes its parts one after another, and the gradients of all parts are added in a
/// fixed binary tree: neighboring ranks first, then the batches of a rank in pairs. If the key is 0, this class does
/// nothing.
///
/// Per part, the random generators are seeded with the step and the number of the part. Only part 0 changes buffers such
/// as running statistics. Operators run on one thread, because their sums depend on the number of threads.
/// Cost: the batches of a rank are smaller, and each exchanges gradients. A rank with p parts keeps up to log2(p) + 1
///       copies of its gradients
class ReproducibleRanks {
 public:
  /// Divides the batches of the job's training data. The job must outlive this object.
  /// Throws: c10::ValueError if the number of ranks is not a power of two that divides the number of parts, or if the
  ///         number of parts does not divide the batch size
  ReproducibleRanks(Job& job, const Ranks& ranks);
  ~ReproducibleRanks();
  ReproducibleRanks(const ReproducibleRanks&) = delete;
  ReproducibleRanks& operator=(const ReproducibleRanks&) = delete;

  bool on() const { return parts_ > 0; }
  /// Number of the loader's batches per batch of the recipe; 1 if the key is 0.
  int64_t batches_per_batch() const { return on() ? parts_ / ranks_ : 1; }

  /// Call this function before the forward pass of a batch.
  /// Params: step, number – number of the step, and of the batch within the step
  void begin_batch(int64_t step, int64_t number);
  /// Call this function after the backward pass of a batch. It moves the gradients into the sums.
  void end_batch();
  /// Sets the gradients to the sums over all batches of the step.
  void end_step();

 private:
  /// The sum of 2^level batches.
  struct Sum {
    int level;
    std::vector<at::Tensor> gradients;
  };

  const Job& job_;
  int64_t parts_, ranks_, rank_;
  bool sums_batches_;    ///< a step has several batches
  bool gradients_stay_;  ///< the gradients are views of buckets that the next exchange overwrites
  int threads_before_;
  std::vector<at::Tensor> kept_buffers_;  ///< of the model, before the forward pass; empty for part 0
  std::vector<Sum> sums_;                 ///< levels decrease
};

}  // namespace bellows::train
