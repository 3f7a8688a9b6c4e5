#pragma once

#include <span>

#include "bellows/kernels/cuda/block_impl.h"
#include "bellows/kernels/cuda/optimizers.h"
#include "bellows/kernels/optimizer_formula.h"

// Each launch processes up to 16 tensors. Their addresses are kernel parameters, and each block finds its tensor by its
// block index.
namespace bellows::kernels::cuda {

constexpr int batch_tensors = 16;

template <class Rule>
struct Batch {
  StepTensor<Rule> tensors[batch_tensors];
  int64_t first_block[batch_tensors + 1];
  int count = 0;

  __device__ int tensor_of_block() const {
    int index = 0;
    while (first_block[index + 1] <= blockIdx.x) ++index;
    return index;
  }
};

template <class Rule>
__device__ void set_step(Rule&, float) {}
__device__ inline void set_step(AdamRule& rule, float step) {
  rule.step = step;
}
__device__ inline void set_step(AdagradRule& rule, float step) {
  rule.step = step;
}

/// Returns the rule with the values of the scalars that are on the device.
template <class Rule>
__device__ Rule resolved(const StepTensor<Rule>& t, const DeviceScalars& scalars) {
  Rule rule = t.rule;
  if (scalars.lr) rule.lr = *scalars.lr;
  if (scalars.grad_scale) rule.grad_factor /= *scalars.grad_scale;
  if (t.device_step) set_step(rule, *t.device_step);
  return rule;
}

/// Returns the formula with its constants. One thread computes the constants in double and reads the scalars on the
/// device. All other threads copy the result. Every thread of the block must call this function.
template <class T, class Rule>
__device__ Formula<T, Rule> formula_of_block(const StepTensor<Rule>& t, const DeviceScalars& scalars) {
  // Declared as bytes, because shared memory has no initializers.
  alignas(Formula<T, Rule>) __shared__ unsigned char storage[sizeof(Formula<T, Rule>)];
  auto* const formula = reinterpret_cast<Formula<T, Rule>*>(storage);
  if (threadIdx.x == 0) *formula = Formula<T, Rule>(resolved(t, scalars));
  __syncthreads();
  return *formula;
}

/// Calls launch(batch, blocks) for all tensors, up to 16 at a time. Each block processes `block_elements` elements.
template <class Rule, class Launch>
void for_batches(std::span<const StepTensor<Rule>> tensors, int64_t block_elements, Launch launch) {
  Batch<Rule> batch;
  batch.first_block[0] = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    batch.tensors[batch.count] = tensors[i];
    const int64_t blocks = (tensors[i].size + block_elements - 1) / block_elements;
    batch.first_block[batch.count + 1] = batch.first_block[batch.count] + blocks;
    ++batch.count;
    if (batch.count < batch_tensors && i + 1 < tensors.size()) continue;
    if (batch.first_block[batch.count] > 0) launch(batch, static_cast<unsigned>(batch.first_block[batch.count]));
    batch.count = 0;
  }
}

}  // namespace bellows::kernels::cuda
