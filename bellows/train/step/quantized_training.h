#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/quant/training/batch_norm_freeze.h"
#include "bellows/quant/training/fake_quantizer.h"

namespace bellows::train {

struct Job;

/// Quantization-aware training of a loop, and frozen batch norms: the recipe's `quantize`, `quantize_scales`,
/// `quantize_start_step` and `batch_norm_freeze_step`. Without these keys, it changes nothing.
/// Threads: not thread-safe
class QuantizedTraining {
 public:
  /// With learned scales, the function adds an optimizer for them to the job. It is the recipe's optimizer, with a
  /// hundredth of the learning rate and without weight decay.
  /// Throws: c10::ValueError if the model has no layer to quantize, or if several ranks learn scales
  QuantizedTraining(Job& job, int64_t ranks);

  /// While the guard exists, the model computes as in the step with this number. Evaluations after n steps compute as in
  /// step n − 1, the last one, and do not change the ranges.
  class Guard {
   public:
    Guard(const QuantizedTraining& training, int64_t step);

   private:
    std::optional<quant::FakeQuantizerGuard> quantized_;
    std::optional<quant::BatchNormFreezeGuard> frozen_;
  };

  /// Makes the ranges equal on all ranks, after the forward passes of a step. Collective. Does nothing before
  /// `quantize_start_step`.
  /// Params: ranks – null if there is only this process
  ///         step  – number of the step
  void exchange(const comm::Group* ranks, int64_t step);

  /// Returns the tensors that steps change by themselves, like running statistics.
  std::vector<at::Tensor> buffers() const;
  NamedTensors state() const;
  void restore(const NamedTensors& state);

 private:
  bool quantizes_in(int64_t step) const { return quantizer_ && step >= start_; }

  Model model_;
  std::optional<quant::FakeQuantizer> quantizer_;
  int64_t start_ = 0;
  int64_t freeze_ = 0;  ///< 0: never
};

/// Prefix of state() in the extra tensors of checkpoints.
constexpr const char* quantized_training_prefix = "quantize.";

}  // namespace bellows::train
