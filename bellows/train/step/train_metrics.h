#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "bellows/comm/group.h"
#include "bellows/core/model.h"

namespace bellows::train {

/// Counts the samples whose largest logit is at the label. Returns a 0-d int64 tensor on the device of the samples.
/// Shapes: scores [N, C], labels [N]
at::Tensor count_hits(const at::Tensor& scores, const at::Tensor& labels);

/// The training accuracy. The recipe's `train_metrics` selects the mode:
/// - none: the accuracy is not measured.
/// - sync: loss and number of correct samples are read on the host after every step, as in a typical training loop.
/// - device: correct samples are counted on the device, and the count is read on request.
/// Threads: not thread-safe
class TrainMetrics {
 public:
  explicit TrainMetrics(std::string mode) : mode_(std::move(mode)) {}

  /// Adds a batch.
  /// Params: loss   – loss of the batch, 0-d
  ///         scores – logits [N, C]. If undefined, the batch is not counted
  ///         labels – class numbers [N]
  void update(const at::Tensor& loss, const at::Tensor& scores, const at::Tensor& labels);
  /// Returns the accuracy since the last call, or NaN if nothing was measured. Waits for the device.
  /// Params: ranks – include the counts of these ranks with one collective; null if there is only this process
  double take_accuracy(const comm::Group* ranks = nullptr);

  /// Returns the counts since the last take_accuracy(), for a checkpoint.
  /// Params: ranks – as in take_accuracy()
  NamedTensors state(const comm::Group* ranks = nullptr) const;
  void restore(const NamedTensors& state);

 private:
  at::Tensor counts(const comm::Group* ranks) const;

  std::string mode_;
  at::Tensor hits_;  ///< 0-d; undefined if nothing was counted
  int64_t samples_ = 0;
};

}  // namespace bellows::train
