#pragma once

#include "bellows/core/model.h"

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
  Batch(NamedTensors tensors, std::vector<int64_t> ids, int64_t epoch = 0, int64_t index = 0);

  /// Throws: c10::ValueError – no such tensor; lists those there are
  const at::Tensor& operator[](std::string_view name) const;
  bool contains(std::string_view name) const;
  const NamedTensors& tensors() const { return tensors_; }

  /// Samples in it. Smaller than the loader's batch size at the end of an epoch, and where samples were skipped.
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  /// Sample::id of each row.
  const std::vector<int64_t>& ids() const { return ids_; }
  int64_t epoch() const { return epoch_; }
  /// Position in the epoch: `loader.start(epoch(), index() + 1)` goes on behind this batch.
  int64_t index() const { return index_; }

  /// A copy on `device`; itself where all is there already.
  Batch to(c10::Device device, bool non_blocking = false) const;

 private:
  NamedTensors tensors_;
  std::vector<int64_t> ids_;
  int64_t epoch_ = 0, index_ = 0;
};

}  // namespace bellows::data
