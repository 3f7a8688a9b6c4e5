#pragma once

#include <vector>

#include "bellows/kernels/adafactor.h"
#include "bellows/optim/adafactor.h"
#include "bellows/optim/fused/fused_step.h"

namespace bellows::optim {

/// Returns the kernel's parameters for one step.
/// Params: step – number of the step, which starts at 1
kernels::AdafactorRule adafactor_rule(const AdafactorGroupOptions& options, double step);

/// Arguments of one step, as row-major tensors on the CPU. `rows` and `columns` are the state of tensors with at least
/// two dims. `squares` is the state of all other tensors.
struct AdafactorTensors {
  TensorList weights, grads, rows, columns, squares, firsts;
  std::vector<at::Scalar> steps;  ///< for each tensor, the number of this step
};

/// Runs kernels::adafactor_step(). If a tap defers operators, the function runs as the operator
/// `bellows::adafactor_step_`.
void adafactor_on_cpu(const AdafactorTensors& tensors, const AdafactorGroupOptions& options, const FusedStep& step);

}  // namespace bellows::optim
