#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace bellows::optim {

/// Params: dtype – dtype of the gradient sums: float32, float64, bfloat16 or float16
struct AccumulatorOptions {
  at::ScalarType dtype = at::kFloat;
};

/// While it lives, backward passes accumulate the gradients of `parameters` in a dtype of your choice, independent of
/// the parameters' dtype. fp32 sums for bf16 weights keep small gradients that a large bf16 sum would lose; bf16 sums
/// for fp32 weights take half the memory. The rest of the loop does not change, because the sum is in
/// `parameter.grad()` as usual:
/// ```
/// const optim::GradientAccumulator sums(parameters, {.dtype = at::kFloat});
/// for (const Batch& micro : micro_batches) (loss_of(micro) / micro_batches.size()).backward();
/// optim::clip_grad_norm_(parameters, 1);   // also clip_and_step(), or a GradScaler's unscale_() and step()
/// optimizer.step();                        // fused optimizers read the sums directly, others convert them if needed
/// optimizer.zero_grad();                   // frees the sums until the next backward()
/// ```
/// Existing gradients are converted and kept in the sum. When the object ends, the sums stay as they are. Parameters
/// that already have this dtype and frozen parameters are not affected.
/// Numerics: each backward pass adds its gradient, which has the parameter's dtype, with one rounding. float32 sums for
///           bf16 weights are bit-identical to a sum in fp32. K additions in bf16 have an error of up to K / 256 of the
///           largest partial sum, and additions below 1 / 512 of the sum are lost. For weights shared by several
///           layers, autograd first sums the gradients in the weights' dtype
///           (tests/optim/gradient_accumulator_test.cpp).
/// Cost:     memory for the sums. The gradient of a backward pass lives until it is added, one parameter at a time. On
///           the CPU, an addition in bf16 uses a temporary copy in fp32.
/// Threads:  autograd may add gradients of several devices concurrently; otherwise not thread-safe
/// Throws:   c10::ValueError if there are no parameters, a parameter is not real floating-point, `dtype` is another
///           dtype, or a parameter has another hook on its gradient (DistributedDataParallel, a sharded optimizer of
///           stage 2, step_in_backward). backward() throws for a sparse gradient.
class GradientAccumulator {
 public:
  explicit GradientAccumulator(const std::vector<at::Tensor>& parameters, const AccumulatorOptions& options = {});
  ~GradientAccumulator();
  GradientAccumulator(const GradientAccumulator&) = delete;
  GradientAccumulator& operator=(const GradientAccumulator&) = delete;

 private:
  class Sums;
  std::unique_ptr<Sums> sums_;
};

}  // namespace bellows::optim
