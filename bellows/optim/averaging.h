#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/optim/schedules/schedule.h"

namespace bellows::optim {

/// Returns the schedule of stochastic weight averaging, which is the plain mean. If the average already contains n
/// models (n ≥ 1), the next model gets the weight 1 / (n + 1).
/// Ref: arXiv:1803.05407; torch.optim.swa_utils.get_swa_multi_avg_fn
Schedule swa_weight();

/// Returns the schedule of an exponential moving average, in which each new model gets the weight 1 - decay.
/// Params: warmup – true: after n updates, the decay is min(decay, (1 + n) / (10 + n)), so that early models have
///         little influence
/// Throws: c10::ValueError if `decay` is outside [0, 1]
/// Ref:    torch.optim.swa_utils.get_ema_multi_avg_fn; warm-up: tf.train.ExponentialMovingAverage(num_updates)
Schedule ema_weight(double decay, bool warmup = false);

/// How a model's buffers (running statistics) are averaged.
enum class AverageBuffers {
  copy,     ///< copies the latest buffers; use update_bn() to compute statistics for the averaged weights
  average,  ///< averages floating-point buffers like parameters, and copies the others
};

/// Params: weight – swa_weight(), ema_weight() or your own function
///         keep_dtype – true: averages have the dtype of the weights, as in PyTorch. Otherwise, averages of 16-bit
///         weights are in fp32, because bf16 cannot resolve the small updates of an average
///         device – device of the averages; empty: the device of the weights
struct AveragingOptions {
  Schedule weight = swa_weight();
  AverageBuffers buffers = AverageBuffers::copy;
  bool keep_dtype = false;
  std::optional<c10::Device> device = {};
};

/// Computes the average of a model's weights during training. This class does not change the model. To use the average
/// in the model, create an AveragedWeights guard.
/// Numerics: in fp32, bit-identical to PyTorch's AveragedModel (tests/optim/averaging_test.cpp). In float64, results
///           differ, because PyTorch rounds the SWA weight to fp32.
/// Cost:     memory for a second set of weights. An update reads both sets and writes one. It does not wait for the
///           device.
/// Threads:  not thread-safe; use it on the optimizer's thread
/// Ref:      torch.optim.swa_utils.AveragedModel
class AveragedModel {
 public:
  /// The average starts as a copy of the model's parameters and buffers.
  /// Throws: c10::ValueError if the model has no parameters, or if there is no weight function
  explicit AveragedModel(Model model, AveragingOptions options = {});

  /// Adds the model's current weights to the average. The first call copies them. Call this function after the
  /// optimizer's step.
  /// Throws: c10::ValueError if the weight function returns a value outside [0, 1], or if names or shapes of parameters
  ///         have changed
  void update_parameters();
  int64_t n_averaged() const { return n_averaged_; }
  const Model& model() const { return model_; }

  /// The averaged parameters and buffers, with the names in the model.
  const NamedTensors& averaged() const { return averaged_; }
  /// Copies the average into `model` permanently.
  /// Throws: c10::ValueError if names or shapes differ
  void copy_to(const Model& model) const;

  /// Returns "n_averaged", and "module.<name>" for each averaged tensor, as in Python. The tensors share memory with
  /// this object.
  NamedTensors state_dict() const;
  /// Throws: c10::ValueError if names or shapes differ; nothing is changed in this case
  void load_state_dict(const NamedTensors& state);

  /// Runs update_bn() with the averaged weights, and stores the statistics in the average. The model keeps its own
  /// statistics.
  /// Params: next – see update_bn()
  void update_bn(const std::function<at::Tensor()>& next);

 private:
  void average_into(const NamedTensors& current);

  Model model_;
  AveragingOptions options_;
  NamedTensors averaged_;
  size_t parameters_ = 0;  ///< number of parameters, which come first in averaged_; buffers follow
  int64_t n_averaged_ = 0;
  bool incomplete_ = false;  ///< an earlier change of averaged_ failed halfway
};

/// While the guard exists, the model has the averaged weights and buffers, for evaluation, saving or export. Gradients
/// and the identity of the parameters do not change. Do not train the model during this time, because the destructor
/// restores the model's own weights.
/// Cost: memory for a copy of the model's weights while the guard exists, and the time of two copies
class AveragedWeights {
 public:
  explicit AveragedWeights(const AveragedModel& average);
  ~AveragedWeights();
  AveragedWeights(const AveragedWeights&) = delete;
  AveragedWeights& operator=(const AveragedWeights&) = delete;

 private:
  std::vector<at::Tensor> current_, saved_;
};

/// Recomputes the running statistics of all batch norms as the mean over all batches. The model runs in training mode
/// without gradients. If the model has no batch norm, it is not changed and no batch is read.
/// Params: next – function that returns one input after another, and then an undefined tensor. Inputs are moved to the
///         model's device
/// Throws: c10::ValueError if the model is not a torch::nn model, or if there is no batch. The batch norms'
///         momenta and the training mode are restored when update_bn() returns or throws
/// Ref:    torch.optim.swa_utils.update_bn
void update_bn(const Model& model, const std::function<at::Tensor()>& next);

/// Returns a function that yields the inputs of a range, for update_bn(). The range must outlive the function.
template <class Range>
std::function<at::Tensor()> inputs_of(Range& range) {
  return [i = range.begin(), end = range.end()]() mutable { return i == end ? at::Tensor() : at::Tensor(*i++); };
}

}  // namespace bellows::optim
