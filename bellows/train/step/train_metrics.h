#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "bellows/comm/group.h"
#include "bellows/core/model.h"

namespace bellows::train {

/// How many samples have their largest score at the label: 0-d int64, on their device.
/// Shapes: scores [N, C], labels [N]
at::Tensor count_hits(const at::Tensor& scores, const at::Tensor& labels);

/// The share of training samples that are classified right, as the recipe's `train_metrics` says.
/// - none: not measured.
/// - sync: loss and hits are read on the host after every step, as the usual loop does.
/// - device: hits are counted on the device and read when somebody asks.
/// Threads: one owner
class TrainMetrics {
 public:
  explicit TrainMetrics(std::string mode) : mode_(std::move(mode)) {}

  /// Params: loss – of the batch, 0-d
  ///         scores – [N, C]; undefined: nothing is measured
  ///         labels – [N]
  void update(const at::Tensor& loss, const at::Tensor& scores, const at::Tensor& labels);
  /// Since the last call; NaN when nothing was measured. Waits for the device.
  /// Params: ranks – of all of which it is, with one collective; null: of this process
  double take_accuracy(const comm::Group* ranks = nullptr);

  /// What was counted since then, for a checkpoint.
  /// Params: ranks – who counted, as above
  NamedTensors state(const comm::Group* ranks = nullptr) const;
  void restore(const NamedTensors& state);

 private:
  at::Tensor counts(const comm::Group* ranks) const;

  std::string mode_;
  at::Tensor hits_;  ///< 0-d; undefined: none
  int64_t samples_ = 0;
};

}  // namespace bellows::train
