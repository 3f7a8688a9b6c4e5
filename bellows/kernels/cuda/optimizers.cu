// A block processes several thousand elements of a tensor. Compiled, but not yet run on a device.
#include "bellows/kernels/cuda/optimizers.h"

#include "bellows/kernels/cuda/low_bit.h"
#include "bellows/kernels/cuda/optimizer_batch_impl.h"
#include "bellows/kernels/ref/element.h"

namespace bellows::kernels::cuda {

namespace {

constexpr int step_threads = 256;
constexpr int64_t block_elements = 16 * step_threads;

template <class T, class Rule>
__device__ void step_element(const StepTensor<Rule>& t, StepTypes types, const Formula<T, Rule>& formula, int states,
                             int64_t i) {
  T p = t.master ? ref::load<T>(t.master, Type::f32, i) : ref::load<T>(t.param, types.param, i);
  T s[3] = {};
  for (int k = 0; k < states; ++k) s[k] = ref::load<T>(t.state[k], types.state, i);
  formula(p, ref::load<T>(t.grad, types.grad, i), s);
  for (int k = 0; k < states; ++k) ref::store(t.state[k], types.state, i, s[k]);
  ref::store_param(t, types, i, p);
}

template <class T, class Rule>
__global__ void step_kernel(__grid_constant__ const Batch<Rule> batch, StepTypes types, DeviceScalars scalars) {
  if (scalars.found_inf && *scalars.found_inf > 0) return;
  const int index = batch.tensor_of_block();
  const StepTensor<Rule>& t = batch.tensors[index];
  const Formula<T, Rule> formula = formula_of_block<T>(t, scalars);
  const int states = (t.state[0] != nullptr) + (t.state[1] != nullptr) + (t.state[2] != nullptr);
  const int64_t begin = (blockIdx.x - batch.first_block[index]) * block_elements;
  const int64_t end = begin + block_elements < t.size ? begin + block_elements : t.size;
  for (int64_t i = begin + threadIdx.x; i < end; i += step_threads) step_element(t, types, formula, states, i);
}

template <class Rule>
void step_all(std::span<const StepTensor<Rule>> tensors, StepTypes types, const DeviceScalars& scalars, void* stream) {
  const auto kernel = types.param == Type::f64 ? step_kernel<double, Rule> : step_kernel<float, Rule>;
  for_batches(tensors, block_elements, [&](const Batch<Rule>& batch, unsigned blocks) {
    launch("step", kernel, blocks, step_threads, stream, batch, types, scalars);
  });
}

}  // namespace

bool is_available() {
  return true;
}

void step(std::span<const StepTensor<SgdRule>> tensors, StepTypes types, const DeviceScalars& scalars, void* stream) {
  if (types.low_bit != LowBit::none) return step_low_bit(tensors, types, scalars, stream);
  step_all(tensors, types, scalars, stream);
}
void step(std::span<const StepTensor<AdamRule>> tensors, StepTypes types, const DeviceScalars& scalars, void* stream) {
  if (types.low_bit != LowBit::none) return step_low_bit(tensors, types, scalars, stream);
  step_all(tensors, types, scalars, stream);
}
void step(std::span<const StepTensor<RmspropRule>> tensors, StepTypes types, const DeviceScalars& scalars,
          void* stream) {
  step_all(tensors, types, scalars, stream);
}
void step(std::span<const StepTensor<AdagradRule>> tensors, StepTypes types, const DeviceScalars& scalars,
          void* stream) {
  step_all(tensors, types, scalars, stream);
}
void step(std::span<const StepTensor<LionRule>> tensors, StepTypes types, const DeviceScalars& scalars, void* stream) {
  if (types.low_bit != LowBit::none) return step_low_bit(tensors, types, scalars, stream);
  step_all(tensors, types, scalars, stream);
}

}  // namespace bellows::kernels::cuda
