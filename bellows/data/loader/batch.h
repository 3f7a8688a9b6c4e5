#pragma once

#include "bellows/core/model.h"
#include "bellows/data/order/epoch_plan.h"

#include <string_view>
#include <vector>

namespace bellows::data {

/// The samples of one step: named tensors with the same first dimension.
///
/// A batch owns its tensors. The loader reuses the memory of a tensor after the tensor and all its views are released.
class Batch {
 public:
  Batch() = default;
  /// Params: ids – one id per sample
  Batch(NamedTensors tensors, std::vector<int64_t> ids, BatchPlace place = {});

  /// Throws: c10::ValueError if the batch has no tensor with this name (the message lists its tensors)
  const at::Tensor& operator[](std::string_view name) const;
  bool contains(std::string_view name) const;
  const NamedTensors& tensors() const { return tensors_; }

  /// Returns the number of samples. The number is smaller than the loader's batch size if samples were skipped, and may
  /// be smaller at the end of an epoch.
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  /// Returns the Sample::id of each row.
  const std::vector<int64_t>& ids() const { return ids_; }
  int64_t epoch() const { return place_.epoch; }
  /// Returns the index of the batch within the epoch. `loader.start(epoch(), index() + 1)` resumes after this batch.
  int64_t index() const { return place_.index; }
  /// Returns the number of samples that all ranks have consumed in this epoch, including this batch.
  /// `loader.start_at(epoch(), consumed())` resumes after this batch, with any number of ranks and any batch size.
  int64_t consumed() const { return place_.consumed; }
  /// Returns the number of rows that were added to fill the batch (Remainder::pad). They are the last rows, and their
  /// samples also occur in another batch.
  int64_t padding() const { return place_.padding; }
  /// Returns the factor by which you multiply the mean loss of the batch. With this factor, the mean of the ranks'
  /// gradients equals the gradient of one process that processes the samples of all ranks as one batch. The factor is 1
  /// if all ranks have batches of the same size. Skipped samples are included in the sizes.
  double loss_weight() const { return place_.loss_weight; }
  const BatchPlace& place() const { return place_; }

  /// Returns a copy on `device`. Tensors that are already on `device` are not copied.
  Batch to(c10::Device device, bool non_blocking = false) const;

 private:
  NamedTensors tensors_;
  std::vector<int64_t> ids_;
  BatchPlace place_;
};

}  // namespace bellows::data
