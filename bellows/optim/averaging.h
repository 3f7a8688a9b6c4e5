#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/optim/schedules/schedule.h"

namespace bellows::optim {

/// Weight of the model in the average after `n` earlier updates, n = 1, 2, …: 1 / (n + 1), the plain mean (stochastic
/// weight averaging).
/// Ref: arXiv:1803.05407; torch.optim.swa_utils.get_swa_multi_avg_fn
Schedule swa_weight();

/// Weight of the model in an exponential moving average: 1 - decay.
/// Params: warmup – the decay starts low, at min(decay, (1 + n) / (10 + n)), so that early models are soon forgotten
/// Throws: c10::ValueError if `decay` is outside [0, 1]
/// Ref:    torch.optim.swa_utils.get_ema_multi_avg_fn; warm-up: tf.train.ExponentialMovingAverage(num_updates)
Schedule ema_weight(double decay, bool warmup = false);

/// How the model's buffers (running statistics) are averaged.
enum class AverageBuffers {
  copy,     ///< copies the latest; use update_bn() to compute statistics for the averaged weights
  average,  ///< averages floating-point buffers like parameters and copies the others
};

/// Params: weight – swa_weight(), ema_weight() or your own function
///         keep_dtype – false: averages of 16-bit weights are fp32, because updates of the average are smaller than
///         bf16 can resolve; true: they have the weights' dtype, as in PyTorch
///         device – device of the averages; empty: that of the weights
struct AveragingOptions {
  Schedule weight = swa_weight();
  AverageBuffers buffers = AverageBuffers::copy;
  bool keep_dtype = false;
  std::optional<c10::Device> device = {};
};

/// Keeps the average of a model's weights over the training. The model itself changes only while an AveragedWeights
/// guard lives.
/// Numerics: bit-identical to torch's AveragedModel in fp32 (tests/optim/averaging_test.cpp). In float64, PyTorch
///           rounds the SWA weight to fp32.
/// Cost:     memory for a second set of weights. An update reads both sets and writes one; it does not wait for the
///           device.
/// Threads:  not thread-safe; use the optimizer's thread
/// Ref:      torch.optim.swa_utils.AveragedModel
class AveragedModel {
 public:
  /// Starts with a copy of the model.
  /// Throws: c10::ValueError if the model has no parameters or there is no weight function
  explicit AveragedModel(Model model, AveragingOptions options = {});

  /// Adds the model's current weights to the average; the first call copies them. Call it after the optimizer's step.
  /// Throws: c10::ValueError if a weight is outside [0, 1], or if names or shapes of parameters have changed
  void update_parameters();
  int64_t n_averaged() const { return n_averaged_; }
  const Model& model() const { return model_; }

  /// The averaged parameters and buffers, with the model's names.
  const NamedTensors& averaged() const { return averaged_; }
  /// Copies the average into `model` permanently.
  /// Throws: c10::ValueError if names or shapes differ
  void copy_to(const Model& model) const;

  /// "n_averaged", and "module.<name>" for each averaged tensor, as in Python. The tensors share storage with this
  /// object.
  NamedTensors state_dict() const;
  /// Throws: c10::ValueError if names or shapes differ; then nothing is changed
  void load_state_dict(const NamedTensors& state);

  /// Runs update_bn() with the averaged weights. The model keeps its own statistics.
  /// Params: next – as in update_bn()
  void update_bn(const std::function<at::Tensor()>& next);

 private:
  void average_into(const NamedTensors& current);

  Model model_;
  AveragingOptions options_;
  NamedTensors averaged_;
  size_t parameters_ = 0;  ///< number of parameters at the start of averaged_; the others are buffers
  int64_t n_averaged_ = 0;
  bool incomplete_ = false;  ///< a change of averaged_ failed halfway
};

/// While it lives, the model has the averaged weights and buffers, for evaluation, saving or export. Gradients and the
/// identity of parameters do not change. Do not train the model meanwhile, because its own weights are restored at the
/// end.
/// Cost: memory for a copy of the model's weights while it lives; two copies
class AveragedWeights {
 public:
  explicit AveragedWeights(const AveragedModel& average);
  ~AveragedWeights();
  AveragedWeights(const AveragedWeights&) = delete;
  AveragedWeights& operator=(const AveragedWeights&) = delete;

 private:
  std::vector<at::Tensor> current_, saved_;
};

/// Recomputes the running statistics of all batch norms as the mean over all batches, in training mode and without
/// gradients. If the model has no batch norm, it is not changed and no batch is read.
/// Params: next – returns one input after another, then an undefined tensor; inputs are moved to the model's device
/// Throws: c10::ValueError if the model is not a torch::nn model or there is no batch; momenta and mode are restored in
///         any case
/// Ref:    torch.optim.swa_utils.update_bn
void update_bn(const Model& model, const std::function<at::Tensor()>& next);

/// The inputs of a range in the form that update_bn() expects. The range must outlive the result.
template <class Range>
std::function<at::Tensor()> inputs_of(Range& range) {
  return [i = range.begin(), end = range.end()]() mutable { return i == end ? at::Tensor() : at::Tensor(*i++); };
}

}  // namespace bellows::optim
