#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bellows/core/mutex.h"
#include "bellows/serve/batch_execution.h"
#include "bellows/serve/model_config.h"

namespace bellows::serve {

/// Makes the results of a model independent of the other requests in a batch, bit for bit.
///
/// A kernel can add numbers in another order when a batch has more rows, so the last bits of a row can depend on the
/// size of its batch. This class finds out which sizes change no bits. Before a batch of a new size runs, the model
/// computes rows of random values, once as a batch of this size and once one by one. If all bits are equal, such batches
/// run as a whole from then on. Otherwise, they are divided into two halves, and so on down to single rows. Each row
/// thus has the bits that it has alone, whatever the back end is.
///
/// The check assumes that the order of operations depends on the sizes and the position of a row, not on the values,
/// which holds for the kernels of all back ends. Inputs that are not aligned to 64 bytes are copied, because MKL's order
/// depends on the alignment.
/// Cost:    for each new size of a batch, one more call and at most one call for each of its rows. After 10,000 sizes, rows
///          of new sizes run one by one
/// Threads: the instances' functions may run at the same time
class BatchInvariance {
 public:
  /// Params: inputs – of the model, with a batch axis in front of `dims`
  explicit BatchInvariance(std::vector<TensorSpec> inputs) : inputs_(std::move(inputs)) {}

  /// Returns a function that calls an instance with batches whose sizes change no bits.
  /// Throws:  its calls throw c10::Error if two instances return different bits for the same row
  /// Threads: a function must not run on two threads at the same time. All functions are created before the first runs,
  ///          and must not outlive the object
  RunModel instance(RunModel run);

 private:
  /// The sizes of all inputs without the batch axis. The order of operations depends on them, too.
  using RowSizes = std::vector<std::vector<int64_t>>;
  class Instance;

  std::vector<at::Tensor> check_row(const RowSizes& sizes, size_t row) const;

  const std::vector<TensorSpec> inputs_;
  std::atomic<int64_t> instances_{0};
  Mutex mutex_;
  /// For each row of the check, the hash of its results when it runs alone. All instances share it.
  std::map<RowSizes, std::vector<std::string>> alone_ BELLOWS_GUARDED_BY(mutex_){};
};

}  // namespace bellows::serve
