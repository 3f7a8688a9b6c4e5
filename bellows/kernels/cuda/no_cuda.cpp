// In place of optimizers.cu in a build without CUDA.
#include <c10/util/Exception.h>

#include "bellows/kernels/cuda/optimizers.h"

namespace bellows::kernels::cuda {

namespace {

[[noreturn]] void refuse() {
  TORCH_CHECK(false, "kernels::cuda: this build of bellows has no CUDA kernels. Configure it with -DBELLOWS_CUDA=ON.");
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

}  // namespace bellows::kernels::cuda
