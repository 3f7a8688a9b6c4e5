// One launch for every 16 tensors: their addresses travel as the kernel's parameters, a block finds its tensor by its
// number. Compiled, but not yet run on a device.
#include "bellows/kernels/cuda/optimizers.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "bellows/kernels/optimizer_formula_impl.h"

namespace bellows::kernels::cuda {

namespace {

constexpr int batch_tensors = 16, threads = 256;
constexpr int64_t block_elements = 16 * threads;

template <class Rule>
struct Batch {
  StepTensor<Rule> tensors[batch_tensors];
  int64_t first_block[batch_tensors + 1];
  int count = 0;
};

template <class T>
__device__ T load(const void* data, Type type, int64_t i) {
  switch (type) {
    case Type::f64:
      return static_cast<T>(static_cast<const double*>(data)[i]);
    case Type::bf16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    case Type::f16:
      return __half2float(static_cast<const __half*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}

template <class T>
__device__ void store(void* data, Type type, int64_t i, T value) {
  switch (type) {
    case Type::f64:
      static_cast<double*>(data)[i] = value;
      break;
    case Type::bf16:
      static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(static_cast<float>(value));
      break;
    case Type::f16:
      static_cast<__half*>(data)[i] = __float2half_rn(static_cast<float>(value));
      break;
    default:
      static_cast<float*>(data)[i] = static_cast<float>(value);
  }
}

template <class Rule>
__device__ void set_step(Rule&, float) {}
__device__ void set_step(AdamRule& rule, float step) {
  rule.step = step;
}
__device__ void set_step(AdagradRule& rule, float step) {
  rule.step = step;
}

/// The rule with the scalars that the device knows.
template <class Rule>
__device__ Rule resolved(const StepTensor<Rule>& t, const DeviceScalars& scalars) {
  Rule rule = t.rule;
  if (scalars.lr) rule.lr = *scalars.lr;
  if (scalars.grad_scale) rule.grad_factor /= *scalars.grad_scale;
  if (t.device_step) set_step(rule, *t.device_step);
  return rule;
}

template <class T, class Rule>
__device__ void step_element(const StepTensor<Rule>& t, StepTypes types, const Formula<T, Rule>& formula, int states,
                             int64_t i) {
  T p = t.master ? load<T>(t.master, Type::f32, i) : load<T>(t.param, types.param, i);
  T s[3] = {};
  for (int k = 0; k < states; ++k) s[k] = load<T>(t.state[k], types.state, i);
  formula(p, load<T>(t.grad, types.grad, i), s);
  for (int k = 0; k < states; ++k) store(t.state[k], types.state, i, s[k]);
  if (t.master) store(t.master, Type::f32, i, p);
  store(t.param, types.param, i, p);
}

template <class T, class Rule>
__global__ void step_kernel(__grid_constant__ const Batch<Rule> batch, StepTypes types, DeviceScalars scalars) {
  if (scalars.found_inf && *scalars.found_inf > 0) return;
  int index = 0;
  while (batch.first_block[index + 1] <= blockIdx.x) ++index;
  const StepTensor<Rule>& t = batch.tensors[index];
  // What lies on the device is read once a block. As bytes: shared memory takes no initializers.
  __shared__ alignas(Rule) unsigned char storage[sizeof(Rule)];
  Rule& rule = *reinterpret_cast<Rule*>(storage);
  if (threadIdx.x == 0) rule = resolved(t, scalars);
  __syncthreads();
  const Formula<T, Rule> formula(rule);
  const int states = (t.state[0] != nullptr) + (t.state[1] != nullptr) + (t.state[2] != nullptr);
  const int64_t begin = (blockIdx.x - batch.first_block[index]) * block_elements;
  const int64_t end = min(begin + block_elements, t.size);
  for (int64_t i = begin + threadIdx.x; i < end; i += threads) step_element(t, types, formula, states, i);
}

template <class Rule>
void launch(const Batch<Rule>& batch, StepTypes types, const DeviceScalars& scalars, void* stream) {
  const auto blocks = static_cast<unsigned>(batch.first_block[batch.count]);
  if (blocks == 0) return;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (types.param == Type::f64) {
    step_kernel<double><<<blocks, threads, 0, cuda_stream>>>(batch, types, scalars);
  } else {
    step_kernel<float><<<blocks, threads, 0, cuda_stream>>>(batch, types, scalars);
  }
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess)
    throw std::runtime_error(std::string("kernels::cuda::step: launch failed: ") + cudaGetErrorString(error));
}

template <class Rule>
void step_all(std::span<const StepTensor<Rule>> tensors, StepTypes types, const DeviceScalars& scalars, void* stream) {
  Batch<Rule> batch;
  batch.first_block[0] = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    batch.tensors[batch.count] = tensors[i];
    const int64_t blocks = (tensors[i].size + block_elements - 1) / block_elements;
    batch.first_block[batch.count + 1] = batch.first_block[batch.count] + blocks;
    ++batch.count;
    if (batch.count < batch_tensors && i + 1 < tensors.size()) continue;
    launch(batch, types, scalars, stream);
    batch.count = 0;
  }
}

}  // namespace

bool is_available() {
  return true;
}

void step(std::span<const StepTensor<SgdRule>> tensors, StepTypes types, const DeviceScalars& scalars, void* stream) {
  step_all(tensors, types, scalars, stream);
}
void step(std::span<const StepTensor<AdamRule>> tensors, StepTypes types, const DeviceScalars& scalars, void* stream) {
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
  step_all(tensors, types, scalars, stream);
}

}  // namespace bellows::kernels::cuda
