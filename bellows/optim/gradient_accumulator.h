#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace bellows::optim {

/// Params: dtype – dtype of the gradient sums: float32, float64, bfloat16 or float16
struct AccumulatorOptions {
  at::ScalarType dtype = at::kFloat;
};

/// While the object exists, backward passes accumulate the gradients of `parameters` in the given dtype, independently
/// of the parameters' dtype. Sums in fp32 for bf16 weights keep small gradients that a large bf16 sum would lose. Sums
/// in bf16 for fp32 weights take half the memory. The rest of the loop does not change, because the sum is in
/// `parameter.grad()` as usual:
/// ```
/// const optim::GradientAccumulator sums(parameters, {.dtype = at::kFloat});
/// for (const Batch& micro : micro_batches) (loss_of(micro) / micro_batches.size()).backward();
/// optim::clip_grad_norm_(parameters, 1);   // also clip_and_step(), or a GradScaler's unscale_() and step()
/// optimizer.step();                        // fused optimizers read the sums directly, others convert them if needed
/// optimizer.zero_grad();                   // frees the sums until the next backward()
/// ```
/// Existing gradients are converted and become part of the sum. The destructor does not change the sums. Parameters
/// that already have this dtype and frozen parameters are not affected.
/// Numerics: each backward pass computes a gradient in the parameter's dtype and adds it with one rounding. For bf16
///           weights, float32 sums are bit-identical to adding the gradients in fp32. K additions in bf16 have an error
///           of up to K / 256 of the largest partial sum. Additions below 1 / 512 of the sum are lost. If several
///           layers share a weight, autograd first sums its gradients in the weight's dtype
///           (tests/optim/gradient_accumulator_test.cpp).
/// Cost:     memory for the sums. Each gradient of a backward pass exists only until it is added to its sum. Gradients
///           are added for one parameter at a time. On the CPU, an addition in bf16 uses a temporary copy in fp32.
/// Threads:  autograd can add gradients of several devices concurrently; otherwise not thread-safe
/// Throws:   c10::ValueError if there are no parameters, if a parameter is not real floating-point, or if `dtype` is
///           not one of the four dtypes above. It is also thrown if a parameter has another hook on its gradient
///           (DistributedDataParallel, a sharded optimizer of stage 2, step_in_backward). backward() throws for a
///           sparse gradient.
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
