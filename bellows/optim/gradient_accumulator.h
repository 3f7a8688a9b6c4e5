#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace bellows::optim {

/// Params: dtype – that gradients are added up in: float32, float64, bfloat16 or float16
struct AccumulatorOptions {
  at::ScalarType dtype = at::kFloat;
};

/// While it lives, backward passes add up the gradients of `parameters` in a type of their own, whatever the parameters'
/// is: in fp32 below bf16 weights, so that small shares are not lost beside a large sum; in bf16 below fp32 weights, for
/// half the memory. Nothing else of a loop changes, since the sum is where it always is, in `parameter.grad()`:
/// ```
/// const optim::GradientAccumulator sums(parameters, {.dtype = at::kFloat});
/// for (const Batch& micro : micro_batches) (loss_of(micro) / micro_batches.size()).backward();
/// optim::clip_grad_norm_(parameters, 1);   // clip_and_step(), a GradScaler's unscale_() and step()
/// optimizer.step();                        // fused ones read the sums as they are, others convert where they need to
/// optimizer.zero_grad();                   // the sums' memory is free until the next backward()
/// ```
/// Gradients that are there already are converted and added to. When it ends, the sums stay as they are. Parameters of that
/// type are left alone, and so are frozen ones.
/// Numerics: each backward pass adds its gradient, which has the parameter's type, with one rounding: float32 below bf16
///           has the bits of a sum in fp32; K additions in bf16 are off by up to K / 256 of the largest partial sum, and
///           what is below 1 / 512 of the sum is lost. A weight that several layers share gets the sum of their gradients
///           from autograd in its own type. (tests/optim/gradient_accumulator_test.cpp)
/// Cost:     the sums. The gradient of one backward pass lives until it is added, one parameter's at a time; on the CPU an
///           addition in bf16 has another one in fp32 beside it
/// Threads:  safe where autograd adds for several devices at once; one owner
/// Throws:   c10::ValueError – no parameters, one that is not of real floating-point numbers, another dtype; a parameter
///           with a hook behind its gradient (DistributedDataParallel, a sharded optimizer of stage 2, step_in_backward).
///           backward(): a sparse gradient
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
