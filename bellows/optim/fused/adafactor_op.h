#pragma once

#include <vector>

#include "bellows/kernels/adafactor.h"
#include "bellows/optim/adafactor.h"
#include "bellows/optim/fused/fused_step.h"

namespace bellows::optim {

/// The kernel's parameters for one step.
/// Params: step – number of the step, starting at 1
kernels::AdafactorRule adafactor_rule(const AdafactorGroupOptions& options, double step);

/// Arguments of one step, row-major on the CPU. `rows` and `columns` belong to the tensors with at least two dims,
/// `squares` to the others.
struct AdafactorTensors {
  TensorList weights, grads, rows, columns, squares, firsts;
  std::vector<at::Scalar> steps;  ///< number of this step, for each tensor
};

/// Runs kernels::adafactor_step. If a tap defers operators, it is the operator `bellows::adafactor_step_`.
void adafactor_on_cpu(const AdafactorTensors& tensors, const AdafactorGroupOptions& options, const FusedStep& step);

}  // namespace bellows::optim
