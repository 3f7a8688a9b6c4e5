#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::bench {

/// A forward pass or a training step by the name that bench/peers/compile_tools.py gives it.
struct Task {
  std::string name, about;
  std::function<Model()> model;
  std::function<at::Tensor()> input;
  std::vector<std::string> tools;  ///< of Python
  double tolerance;                ///< of what is compared, against the largest value of it
  bool bf16 = false;

  bool is_step() const { return name.rfind("step-", 0) == 0; }
  bool is_bert() const { return name.find("bert") != std::string::npos; }
  bool is_unet() const { return name.find("unet") != std::string::npos; }
};

/// In fp32, then under bf16 autocast.
std::vector<Task> all_tasks();
/// Throws: c10::ValueError – there is none of this name
Task task_named(const std::string& name);

/// The forward pass of a model of its own. Params: weights – set to those of the model, which keep their values
std::function<at::Tensor(const at::Tensor&)> forward_of(const Task& task, std::vector<at::Tensor>& weights);
/// The task with its input. Params: weights – set to those that keep their values: of forward passes
std::function<at::Tensor()> function_of(const Task& task, std::vector<at::Tensor>& weights);

/// The first values of a forward pass, or the losses of the first steps.
std::vector<double> checked_values(const Task& task, const std::function<at::Tensor()>& call);

/// What a call has to do at least. Products and convolutions at the rate of a large product, and their operands, results and the optimizer's
/// state once through memory at the rate of the fastest loop over it.
struct Limit {
  double flops = 0, bytes = 0;
  double seconds = 0;  ///< both after one another
};
Limit limit_of(const Task& task);

}  // namespace bellows::bench
