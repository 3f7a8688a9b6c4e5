#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "bellows/core/model_parts.h"
#include "bellows/parallel/pipeline/pipeline.h"
#include "bellows/parallel/pipeline/split_backward.h"
#include "bellows/parallel/pipeline/stage_exchange.h"

namespace bellows::parallel {

/// A batch, divided into micro-batches.
struct MicroBatches {
  std::vector<std::vector<at::Tensor>> inputs, targets;  ///< by micro-batch
  std::vector<double> samples;                           ///< number of samples of each micro-batch

  /// Divides along dim 0. The numbers of samples differ by at most one.
  /// Params: copy – if false, the results are views
  /// Throws: c10::ValueError if there are fewer samples than micro-batches, or if the tensors' numbers of samples
  ///         differ
  static MicroBatches divide(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& targets, int count,
                             bool copy = false);
};

/// Seeds the default generators while random numbers of a pipeline are drawn. The destructor restores their states.
class StageRandom {
 public:
  /// Params: device – whose generator is seeded, in addition to that of the CPU
  StageRandom(uint64_t seed, int64_t step, c10::Device device);
  ~StageRandom();
  StageRandom(const StageRandom&) = delete;
  StageRandom& operator=(const StageRandom&) = delete;
  /// Seeds the generators for a part of the model.
  void begin(int micro_batch, int part) const;

 private:
  struct Saved;
  std::vector<Saved> saved_;
  uint64_t seed_;
};

/// The data and options with which the actions of a step run.
struct StageStep {
  const MicroBatches* batch = nullptr;
  const PipelineLoss* loss = nullptr;  ///< null: no loss, and no gradients
  std::vector<double> weights = {};    ///< weights of the micro-batches in the mean
  double loss_factor = 1;
  at::Tensor grad_scale = {};
  const StageRandom* random = nullptr;       ///< null: no seeds, as in evaluation
  const StageCall* forward_call = nullptr;   ///< see PipelineOptions
  const StageCall* backward_call = nullptr;  ///< see PipelineOptions
  const TensorParallel* tensor = nullptr;    ///< null: the layers are complete
  bool divide_backward = true, check_finite = false;
};

/// Runs the actions of a rank. If run() throws, do not use the runner again until begin().
/// Threads: not thread-safe
class StageRunner {
 public:
  /// Params: first_parts – the first part of each stage. The references must stay valid
  StageRunner(const ModelParts& parts, const std::vector<int>& first_parts, StageExchange& exchange)
      : parts_(parts), first_parts_(first_parts), exchange_(exchange) {}

  void begin(StageStep step);
  void run(const PipelineAction& action);
  double loss() const;                                               ///< sum of the weighted losses on the last rank
  std::vector<at::Tensor> outputs() { return std::move(outputs_); }  ///< without a loss: outputs of the last stage

 private:
  /// A micro-batch in a stage, between forward and the end of backward.
  struct Activation {
    at::Tensor input, output, gradient;
    std::optional<SplitBackward> split = {};
  };
  using Key = std::pair<int, int>;  // stage, micro-batch

  bool is_last(int stage) const { return stage + 1 == static_cast<int>(first_parts_.size()); }
  at::Tensor receive_input(int stage, int micro_batch);
  at::Tensor run_parts(int stage, int micro_batch, const at::Tensor& input) const;
  at::Tensor weighted_loss(const at::Tensor& output, int micro_batch, at::Tensor& share) const;
  void forward(int stage, int micro_batch);
  void backward(const PipelineAction& action);
  void backward_weight(int stage, int micro_batch);
  void send_gradient(int stage, int micro_batch, const at::Tensor& input);
  void check(const at::Tensor& tensor, const char* what) const;

  const ModelParts& parts_;
  const std::vector<int>& first_parts_;
  StageExchange& exchange_;
  StageStep step_;
  std::map<Key, Activation> active_;
  std::vector<at::Tensor> outputs_;
  at::Tensor loss_;  ///< see loss(); fp64, undefined before the first loss
  double weight_sum_ = 0;
};

}  // namespace bellows::parallel
