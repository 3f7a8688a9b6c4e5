#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bellows/core/model.h"
#include "bellows/metrics/classification.h"

namespace bellows::train {

/// The share of training samples that are classified right, as the recipe's `train_metrics` says.
/// - none: not measured.
/// - sync: loss and hits are read on the host after every step, as the usual loop does.
/// - device: hits are counted on the device and read when somebody asks.
/// Threads: one owner
class TrainMetrics {
 public:
  explicit TrainMetrics(std::string mode) : mode_(std::move(mode)) {}

  /// Params: loss – of the batch, 0-d
  ///         predictions – [N, C]; undefined: nothing is measured
  ///         labels – [N]
  void update(const at::Tensor& loss, const at::Tensor& predictions, const at::Tensor& labels);
  /// Since the last call; NaN when nothing was measured. Waits for the device.
  double take_accuracy();

  /// What was counted since then, for a checkpoint.
  NamedTensors state() const;
  void restore(const NamedTensors& state);

 private:
  void start(int64_t classes);

  std::string mode_;
  std::optional<metrics::Accuracy> on_device_;
  int64_t classes_ = 0;
  int64_t hits_ = 0, samples_ = 0;  ///< of mode sync
};

}  // namespace bellows::train
