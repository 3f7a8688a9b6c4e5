#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/optim/schedules/schedule.h"

namespace bellows::optim {

/// How much the model counts beside the average of `n` updates before it, n = 1, 2, …: 1 / (n + 1), the plain mean
/// (stochastic weight averaging). Ref: arXiv:1803.05407; torch.optim.swa_utils.get_swa_multi_avg_fn
Schedule swa_weight();

/// 1 - decay, the exponential moving average.
/// Params:   warmup – the decay starts low: min(decay, (1 + n) / (10 + n)), so that the first models are soon forgotten
/// Throws:   c10::ValueError – decay outside 0 to 1
/// Ref:      torch.optim.swa_utils.get_ema_multi_avg_fn; warm-up: tf.train.ExponentialMovingAverage(num_updates)
Schedule ema_weight(double decay, bool warmup = false);

/// What becomes of the model's buffers (running statistics).
enum class AverageBuffers {
  copy,     ///< the newest; give the averaged weights statistics of their own with update_bn()
  average,  ///< floating ones averaged like parameters, others copied
};

/// Params:   weight – swa_weight(), ema_weight() or a function of your own
///           keep_dtype – false: averages of 16-bit weights are kept in fp32, since a step of the average is smaller
///           than bf16 resolves; true: as PyTorch, in the weights' own dtype
///           device – where the averages are kept; none: beside the weights
struct AveragingOptions {
  Schedule weight = swa_weight();
  AverageBuffers buffers = AverageBuffers::copy;
  bool keep_dtype = false;
  std::optional<c10::Device> device = {};
};

/// The average of a model's weights over its training, beside the model. The model itself is not changed, except while
/// an AveragedWeights guard lives.
/// Numerics: bit for bit AveragedModel's in fp32 (tests/optim/averaging_test.cpp); in float64 PyTorch rounds SWA's
///           weight to fp32
/// Cost:     memory of one more set of weights; an update reads both and writes one, no wait for the device
/// Threads:  one thread at a time, the optimizer's
/// Ref:      torch.optim.swa_utils.AveragedModel
class AveragedModel {
 public:
  /// Starts as a copy of the model. Throws: c10::ValueError – a model without parameters, no weight function
  explicit AveragedModel(Model model, AveragingOptions options = {});

  /// Takes the model's present weights in; the first time they are copied. Call it after the optimizer's step.
  /// Throws: c10::ValueError – a weight outside 0 to 1, or parameters of other names or shapes than at the start
  void update_parameters();
  int64_t n_averaged() const { return n_averaged_; }
  const Model& model() const { return model_; }

  /// The averaged parameters and buffers by the model's names.
  const NamedTensors& averaged() const { return averaged_; }
  /// Copies the average into `model`, for good. Throws: c10::ValueError – it does not fit
  void copy_to(const Model& model) const;

  /// "n_averaged" and "module.<name>" for every averaged tensor, as Python's. Tensors share storage with this object.
  NamedTensors state_dict() const;
  /// Throws: c10::ValueError – names or shapes differ; nothing is changed then
  void load_state_dict(const NamedTensors& state);

  /// update_bn() of the averaged weights; the model keeps its own statistics.
  /// Params: next – as update_bn's
  void update_bn(const std::function<at::Tensor()>& next);

 private:
  void average_into(const NamedTensors& current);

  Model model_;
  AveragingOptions options_;
  NamedTensors averaged_;
  size_t parameters_ = 0;  ///< the first so many of averaged_ are parameters, the rest buffers
  int64_t n_averaged_ = 0;
  bool incomplete_ = false;  ///< a change of averaged_ failed half way
};

/// While it lives, the model has the averaged weights and buffers: evaluate, save or export it. Gradients and identity
/// of the parameters stay. The model must not be trained meanwhile: its own weights come back at the end.
/// Cost:     memory of the model's weights while it lives; two copies
class AveragedWeights {
 public:
  explicit AveragedWeights(const AveragedModel& average);
  ~AveragedWeights();
  AveragedWeights(const AveragedWeights&) = delete;
  AveragedWeights& operator=(const AveragedWeights&) = delete;

 private:
  std::vector<at::Tensor> current_, saved_;
};

/// Computes the running statistics of every batch norm anew: the mean over all batches, in training mode and without
/// gradients. A model without batch norm is left as it is, and no batch is taken.
/// Params:   next – gives one input after the other, then an undefined tensor. They are moved to the model's device
/// Throws:   c10::ValueError – not a torch::nn model, or no batch at all; momenta and mode are put back even then
/// Ref:      torch.optim.swa_utils.update_bn
void update_bn(const Model& model, const std::function<at::Tensor()>& next);

/// The inputs of a range, as update_bn() takes them; the range must outlive the result.
template <class Range>
std::function<at::Tensor()> inputs_of(Range& range) {
  return [i = range.begin(), end = range.end()]() mutable { return i == end ? at::Tensor() : at::Tensor(*i++); };
}

}  // namespace bellows::optim
