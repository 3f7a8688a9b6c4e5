#pragma once

#include "bellows/core/model.h"
#include "bellows/data/order/epoch_plan.h"

#include <string_view>
#include <vector>

namespace bellows::data {

/// The samples of one step: named tensors that share their first dimension.
///
/// A batch owns its tensors. The loader takes their memory back when the last tensor or view of it is gone.
class Batch {
 public:
  Batch() = default;
  /// Params: ids – one for each sample
  Batch(NamedTensors tensors, std::vector<int64_t> ids, BatchPlace place = {});

  /// Throws: c10::ValueError – no such tensor; lists those there are
  const at::Tensor& operator[](std::string_view name) const;
  bool contains(std::string_view name) const;
  const NamedTensors& tensors() const { return tensors_; }

  /// Samples in it. Smaller than the loader's batch size at the end of an epoch, and where samples were skipped.
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  /// Sample::id of each row.
  const std::vector<int64_t>& ids() const { return ids_; }
  int64_t epoch() const { return place_.epoch; }
  /// Position in the epoch: `loader.start(epoch(), index() + 1)` goes on behind this batch.
  int64_t index() const { return place_.index; }
  /// Samples of the epoch that all ranks have taken with this batch: `loader.start_at(epoch(), consumed())` goes on
  /// behind it, with any number of ranks and any batch size.
  int64_t consumed() const { return place_.consumed; }
  /// Trailing rows that fill the batch up (Remainder::pad): another batch has them, too.
  int64_t padding() const { return place_.padding; }
  /// Multiply the batch's mean loss by it: the mean of the ranks' gradients is then that of one process that takes the
  /// samples of all ranks as one batch. 1 where the ranks' batches are of one size. Samples that on_bad_sample skips count.
  double loss_weight() const { return place_.loss_weight; }
  const BatchPlace& place() const { return place_; }

  /// A copy on `device`; itself where all is there already.
  Batch to(c10::Device device, bool non_blocking = false) const;

 private:
  NamedTensors tensors_;
  std::vector<int64_t> ids_;
  BatchPlace place_;
};

}  // namespace bellows::data
