#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "bellows/comm/group.h"
#include "bellows/core/model.h"

namespace bellows::train {

/// Number of samples whose largest logit is at the label: 0-d int64, on their device.
/// Shapes: scores [N, C], labels [N]
at::Tensor count_hits(const at::Tensor& scores, const at::Tensor& labels);

/// The training accuracy, as the recipe's `train_metrics` selects:
/// - none: not measured.
/// - sync: loss and hits are read on the host after every step, as a usual loop does.
/// - device: hits are counted on the device and read on request.
/// Threads: not thread-safe
class TrainMetrics {
 public:
  explicit TrainMetrics(std::string mode) : mode_(std::move(mode)) {}

  /// Params: loss – of the batch, 0-d
  ///         scores – logits [N, C]; undefined: nothing is measured
  ///         labels – [N]
  void update(const at::Tensor& loss, const at::Tensor& scores, const at::Tensor& labels);
  /// The accuracy since the last call; NaN if nothing was measured. Waits for the device.
  /// Params: ranks – include the counts of these ranks with one collective; null: this process only
  double take_accuracy(const comm::Group* ranks = nullptr);

  /// The counts since then, for a checkpoint.
  /// Params: ranks – as above
  NamedTensors state(const comm::Group* ranks = nullptr) const;
  void restore(const NamedTensors& state);

 private:
  at::Tensor counts(const comm::Group* ranks) const;

  std::string mode_;
  at::Tensor hits_;  ///< 0-d; undefined: none
  int64_t samples_ = 0;
};

}  // namespace bellows::train
