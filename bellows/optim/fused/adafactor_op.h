#pragma once

#include <vector>

#include "bellows/kernels/adafactor.h"
#include "bellows/optim/adafactor.h"
#include "bellows/optim/fused/fused_impl.h"

namespace bellows::optim {

/// The numbers of step number `step`, from 1.
kernels::AdafactorRule adafactor_rule(const AdafactorGroupOptions& options, double step);

/// What one step works on, row-major on the CPU. Rows and columns are of those that have two dims or more, squares of the others.
struct AdafactorTensors {
  TensorList weights, grads, rows, columns, squares, firsts;
  std::vector<at::Scalar> steps;  ///< number of this step, of each
};

/// kernels::adafactor_step. Where a client of the taps defers operators, it is one itself, `bellows::adafactor_step_`.
void adafactor_on_cpu(const AdafactorTensors& tensors, const AdafactorGroupOptions& options, const FusedStep& step);

}  // namespace bellows::optim
