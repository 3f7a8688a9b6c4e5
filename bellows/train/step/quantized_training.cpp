#include "bellows/train/step/quantized_training.h"

#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

QuantizedTraining::QuantizedTraining(const Recipe& recipe, const Model& model, int64_t ranks)
    : model_(model), start_(recipe.quantize_start_step), freeze_(recipe.batch_norm_freeze_step) {
  if (recipe.quantize == "none") return;
  TORCH_CHECK_VALUE(ranks == 1, "train: quantize = ", recipe.quantize,
                    " works only with one process, because each rank would see other ranges, got ", ranks,
                    " ranks. Set quantize: none, or train on one rank.");
  quantizer_.emplace(model);
}

QuantizedTraining::Guard::Guard(const QuantizedTraining& training, int64_t step) {
  if (training.quantizer_ && step >= training.start_) quantized_.emplace(*training.quantizer_);
  if (training.freeze_ > 0 && step >= training.freeze_) frozen_.emplace(training.model_);
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
