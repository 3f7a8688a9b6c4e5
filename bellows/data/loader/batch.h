#pragma once

#include "bellows/core/model.h"
#include "bellows/data/order/epoch_plan.h"

#include <string_view>
#include <vector>

namespace bellows::data {

/// The samples of one step: named tensors that share their first dimension.
///
/// A batch owns its tensors. The loader reuses their memory after the last tensor and the last view of it are released.
class Batch {
 public:
  Batch() = default;
  /// Params: ids – one per sample
  Batch(NamedTensors tensors, std::vector<int64_t> ids, BatchPlace place = {});

  /// Throws: c10::ValueError if there is no such tensor (the message lists those in the batch)
  const at::Tensor& operator[](std::string_view name) const;
  bool contains(std::string_view name) const;
  const NamedTensors& tensors() const { return tensors_; }

  /// Number of samples. Smaller than the loader's batch size at the end of an epoch and if samples were skipped.
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  /// Sample::id of each row.
  const std::vector<int64_t>& ids() const { return ids_; }
  int64_t epoch() const { return place_.epoch; }
  /// Index within the epoch: `loader.start(epoch(), index() + 1)` resumes after this batch.
  int64_t index() const { return place_.index; }
  /// Samples of the epoch that all ranks have consumed, including this batch: `loader.start_at(epoch(), consumed())`
  /// resumes after it, with any number of ranks and any batch size.
  int64_t consumed() const { return place_.consumed; }
  /// Number of trailing rows that fill up the batch (Remainder::pad) and are also in another batch.
  int64_t padding() const { return place_.padding; }
  /// Factor for the batch's mean loss: the mean of the ranks' gradients then equals that of one process that takes the
  /// samples of all ranks as one batch. It is 1 if the ranks' batches have the same size. Samples that on_bad_sample
  /// skips count.
  double loss_weight() const { return place_.loss_weight; }
  const BatchPlace& place() const { return place_; }

  /// Returns a copy on `device`, or this batch if all tensors are there already.
  Batch to(c10::Device device, bool non_blocking = false) const;

 private:
  NamedTensors tensors_;
  std::vector<int64_t> ids_;
  BatchPlace place_;
};

}  // namespace bellows::data
