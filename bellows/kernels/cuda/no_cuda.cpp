// Replaces the CUDA sources in a build without CUDA.
#include <c10/util/Exception.h>

#include "bellows/kernels/cuda/activation.h"
#include "bellows/kernels/cuda/layer_norm.h"
#include "bellows/kernels/cuda/low_bit.h"
#include "bellows/kernels/cuda/optimizers.h"
#include "bellows/kernels/cuda/softmax.h"

namespace bellows::kernels::cuda {

namespace {

[[noreturn]] void refuse() {
  TORCH_CHECK(false, "kernels::cuda: this build of Bellows has no CUDA kernels. Configure it with -DBELLOWS_CUDA=ON.");
}

}  // namespace

bool is_available() {
  return false;
}

void step(std::span<const StepTensor<SgdRule>>, StepTypes, const DeviceScalars&, void*) {
  refuse();
}
void step(std::span<const StepTensor<AdamRule>>, StepTypes, const DeviceScalars&, void*) {
  refuse();
}
void step(std::span<const StepTensor<RmspropRule>>, StepTypes, const DeviceScalars&, void*) {
  refuse();
}
void step(std::span<const StepTensor<AdagradRule>>, StepTypes, const DeviceScalars&, void*) {
  refuse();
}
void step(std::span<const StepTensor<LionRule>>, StepTypes, const DeviceScalars&, void*) {
  refuse();
}

void step_low_bit(std::span<const StepTensor<SgdRule>>, StepTypes, const DeviceScalars&, void*) {
  refuse();
}
void step_low_bit(std::span<const StepTensor<AdamRule>>, StepTypes, const DeviceScalars&, void*) {
  refuse();
}
void step_low_bit(std::span<const StepTensor<LionRule>>, StepTypes, const DeviceScalars&, void*) {
  refuse();
}

void softmax_statistics(const SoftmaxStatistics&, void*) {
  refuse();
}
void softmax_gradient(const SoftmaxGradient&, void*) {
  refuse();
}

void activation_forward(const ActivationForward&, void*) {
  refuse();
}
void activation_backward(const ActivationBackward&, void*) {
  refuse();
}

int64_t norm_workspace(int64_t, int64_t) {
  refuse();
}
void norm_forward(const NormForward&, void*) {
  refuse();
}
void norm_backward(const NormBackward&, void*, void*) {
  refuse();
}
void dropout_norm_forward(const DropoutNormForward&, void*) {
  refuse();
}
void dropout_norm_backward(const DropoutNormBackward&, void*, void*) {
  refuse();
}

}  // namespace bellows::kernels::cuda
