#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::bench {

/// A forward pass or a training step, by its name in bench/peers/compile_tools.py.
struct Task {
  std::string name, about;
  std::function<Model()> model;
  std::function<at::Tensor()> input;
  std::vector<std::string> tools;  ///< Python compilers to compare
  double tolerance;                ///< tolerance of the compared values, relative to their largest value
  bool bf16 = false;

  bool is_step() const { return name.rfind("step-", 0) == 0; }
  bool is_bert() const { return name.find("bert") != std::string::npos; }
  bool is_unet() const { return name.find("unet") != std::string::npos; }
};

/// Returns all tasks: first in fp32, then with bf16 autocast.
std::vector<Task> all_tasks();
/// Throws: c10::ValueError if there is no task with this name
Task task_named(const std::string& name);

/// Returns the forward pass of a new model.
/// Params: weights – set to the weights of this model, which do not change
std::function<at::Tensor(const at::Tensor&)> forward_of(const Task& task, std::vector<at::Tensor>& weights);
/// Returns the task with its input.
/// Params: weights – for forward passes, set to the weights, which do not change
std::function<at::Tensor()> function_of(const Task& task, std::vector<at::Tensor>& weights);

/// Returns the first values of a forward pass, or the losses of the first steps.
std::vector<double> checked_values(const Task& task, const std::function<at::Tensor()>& call);

/// The minimum work of a call. Matrix multiplications and convolutions run at the highest rate of a large matrix multiplication. Their
/// operands and results, and the optimizer state, pass through memory once at the rate of the fastest loop.
struct Limit {
  double flops = 0, bytes = 0;
  double seconds = 0;  ///< time of the computation plus time of the memory traffic
};
Limit limit_of(const Task& task);

}  // namespace bellows::bench
