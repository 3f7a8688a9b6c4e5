#include "bellows/train/step/quantized_training.h"

#include <utility>

#include "bellows/comm/collectives.h"
#include "bellows/train/job.h"

namespace bellows::train {

namespace {

/// Scales are about a hundredth of the weights and activations: with 8 bits, the largest value is 127 times the scale.
constexpr double share_of_lr = 0.01;

/// The recipe's optimizer, without weight decay, which would shrink the scales.
std::shared_ptr<torch::optim::Optimizer> scale_optimizer(Recipe recipe, std::vector<at::Tensor> scales) {
  recipe.weight_decay = 0;
  std::shared_ptr<torch::optim::Optimizer> optimizer = make_optimizer(recipe, std::move(scales));
  for (auto& group : optimizer->param_groups()) {
    group.options().set_lr(share_of_lr * group.options().get_lr());
  }
  return optimizer;
}

}  // namespace

QuantizedTraining::QuantizedTraining(Job& job, int64_t ranks)
    : model_(job.model), start_(job.recipe.quantize_start_step), freeze_(job.recipe.batch_norm_freeze_step) {
  if (job.recipe.quantize == "none") return;
  const bool learned = job.recipe.quantize_scales == "learned";
  TORCH_CHECK_VALUE(!learned || ranks == 1,
                    "train: quantize_scales = learned works only with one process, because ranks exchange only the "
                    "gradients of weights, got ",
                    ranks, " ranks. Set quantize_scales: observed, or train on one rank.");
  quantizer_.emplace(model_, quant::FakeQuantizerOptions{.learned_steps = learned});
  if (learned) job.optimizers.push_back(scale_optimizer(job.recipe, quantizer_->learned_steps()));
}

QuantizedTraining::Guard::Guard(const QuantizedTraining& training, int64_t step) {
  if (training.quantizes_in(step)) quantized_.emplace(*training.quantizer_);
  if (training.freeze_ > 0 && step >= training.freeze_) frozen_.emplace(training.model_);
}

void QuantizedTraining::exchange(const comm::Group* ranks, int64_t step) {
  if (!ranks || !quantizes_in(step)) return;
  quantizer_->combine_ranges(
      [ranks](const at::Tensor& bounds) { return comm::all_reduce(bounds, *ranks, comm::Reduce::max); });
}

std::vector<at::Tensor> QuantizedTraining::buffers() const {
  return quantizer_ ? quantizer_->buffers() : std::vector<at::Tensor>();
}

NamedTensors QuantizedTraining::state() const {
  return quantizer_ ? quantizer_->state() : NamedTensors();
}

void QuantizedTraining::restore(const NamedTensors& state) {
  if (quantizer_) quantizer_->load_state(state);
}

}  // namespace bellows::train
