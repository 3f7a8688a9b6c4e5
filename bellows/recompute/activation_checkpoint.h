#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "bellows/recompute/policy.h"

namespace bellows::recompute {

struct CheckpointOptions {
  /// Selects the operator outputs to keep. The second run, in which backward repeats the function, does not compute
  /// these outputs again. If empty, no outputs are kept. A policy does not change the results, except for the operators
  /// listed in docs/tap-bits.md. It requires that the function calls the same operators in both runs.
  CheckpointRule policy = {};
  /// Fraction, from 0 to 1, of the function's activation bytes that may be kept. Bellows keeps the outputs that save
  /// the most time in the second run. If a call has neither budget nor policy, it uses the surrounding BudgetGuard, if
  /// there is one. Compared with this option, BudgetGuard measures less often and considers all checkpointed calls
  /// together.
  std::optional<double> budget = {};
  /// Makes the second run draw the same random numbers as the first run. For the second run, the default generators of
  /// the CPU and of the inputs' devices are reset to their states before the first run. After the second run, the
  /// generators continue from the states that they had before it. The reset is omitted if the first run drew no random
  /// numbers.
  bool preserve_rng_state = true;
  /// Stops the second run as soon as it has computed all tensors that backward needs.
  bool early_stop = true;
  /// Checks that the second run saves the same number of tensors as the first run, with the same sizes, dtypes and
  /// devices.
  bool check_metadata = true;
  /// Also checks that the saved values are bit-identical. This finds differences between the two runs, but reads all
  /// saved tensors in both runs.
  bool check_values = false;
  /// After the second run, restores the buffers that the function writes in place (running statistics, counters).
  bool restore_buffers = true;
};

namespace detail {

/// Runs the function on the given tensors instead of its original inputs, and discards the results.
using Rerun = std::function<void(const std::vector<at::Tensor>&)>;

/// Returns whether autograd records a graph. In no-grad and inference mode, it records no graph, so nothing is saved or
/// recomputed.
bool records_graph();

class Region;

/// While this object exists, the tensors that autograd saves on this thread belong to one region, which is one call of
/// a checkpointed function.
class RegionScope {
 public:
  RegionScope(const std::vector<at::Tensor>& inputs, Rerun rerun, const CheckpointOptions& options);
  ~RegionScope();
  RegionScope(const RegionScope&) = delete;
  RegionScope& operator=(const RegionScope&) = delete;
  /// Call this function when the checkpointed function has returned.
  void finish();

 private:
  struct Taps;
  std::shared_ptr<Region> region_;
  std::unique_ptr<Taps> taps_;
};

template <class T>
concept TensorRange = requires(T& range) {
  requires std::same_as<std::remove_cvref_t<decltype(*std::begin(range))>, at::Tensor>;
};

/// Calls visit(tensor) for each tensor in an input, which is a tensor, an optional tensor or a container of tensors.
template <class Input, class Visit>
void for_tensors(Input& input, const Visit& visit) {
  if constexpr (std::same_as<std::remove_const_t<Input>, at::Tensor>) {
    visit(input);
  } else if constexpr (std::same_as<std::remove_const_t<Input>, std::optional<at::Tensor>>) {
    if (input) visit(*input);
  } else if constexpr (TensorRange<Input>) {
    for (auto& tensor : input) visit(tensor);
  }
}

/// A function and its inputs. Tensors in the inputs are undefined here, because the region stores them separately.
template <class Function, class... Inputs>
struct StoredCall {
  Function function;
  std::tuple<Inputs...> inputs;

  void run(const std::vector<at::Tensor>& tensors) {
    auto filled = inputs;
    auto next = tensors.begin();
    std::apply([&](auto&... input) { (for_tensors(input, [&](at::Tensor& tensor) { tensor = *next++; }), ...); },
               filled);
    std::apply([&](const auto&... input) { (void)function(input...); }, filled);
  }
};

}  // namespace detail

/// Calls `function(inputs...)`, and keeps only the inputs until backward, not the activations. When backward needs the
/// activations, the function runs again. Parameters that the function captures get their gradients, too.
///
/// The function must compute the same in both runs. It may draw random numbers only from libtorch's default generators.
/// Inputs and captured tensors must not be modified between the two runs. If the number, sizes or dtypes of the saved
/// tensors differ, backward throws. Different values are detected only with check_values. The function is copied, and
/// the copy lives as long as the graph. **Objects that the function captures by reference must live as long.** Pass
/// tensors as inputs instead of capturing them, so that surrounding checkpointed calls do not keep them.
///
/// Checkpointed calls can be nested. They support autocast (both runs use the same autocast state), gradient
/// accumulation, retain_graph (each backward pass runs the function again), backward from only some of the outputs, and
/// DistributedDataParallel. They also work with the guards of this component, which compress or offload the inputs like
/// other saved tensors. In no-grad mode, checkpoint() only calls the function.
/// Params:   options – optional first argument: checkpoint({.budget = 0.5}, function, x)
///           inputs – arguments of the function. Tensors, optional tensors and vectors of tensors are kept for the
///                    second run. All other inputs are copied
/// Returns:  the result of the function. It may have any type except void
/// Numerics: results, gradients, buffers and generator states are bit-identical to those of `function(inputs...)`
///           (tests/recompute). A batch norm updates its running statistics only once.
/// Cost:     one more forward pass of the function, without the operators whose outputs a policy or budget keeps.
///           Memory: the inputs and the kept outputs, plus 5 KB if the function draws random numbers. Backward also
///           needs memory for the tensors that the function saves.
/// Threads:  thread-safe; backward passes that need the same call wait for each other. While a function that draws
///           random numbers runs (in either run), no other thread may draw random numbers, because the generators are
///           shared. On the CPU, backward detects violations.
/// Throws:   c10::ValueError if the budget is outside 0 … 1, or if the function modified an input in place. Backward
///           throws if the second run differs from the first run, or if an input was modified between the runs. It also
///           throws if another thread drew random numbers during a run, or if a second derivative is requested
///           (create_graph)
/// Ref:      torch.utils.checkpoint.checkpoint(use_reentrant=False); arXiv:1604.06174
template <class Function, class... Inputs>
requires(!std::same_as<std::remove_cvref_t<Function>, CheckpointOptions>) auto checkpoint(
    const CheckpointOptions& options, Function function, const Inputs&... inputs) {
  static_assert(!std::is_void_v<decltype(function(inputs...))>, "checkpoint: the function must return its outputs");
  if (!detail::records_graph()) return function(inputs...);
  std::vector<at::Tensor> tensors;
  const auto keep = [&](const at::Tensor& tensor) { tensors.push_back(tensor); };
  (detail::for_tensors(inputs, keep), ...);
  using Call = detail::StoredCall<Function, std::decay_t<Inputs>...>;
  auto call = std::make_shared<Call>(Call{function, std::tuple<std::decay_t<Inputs>...>(inputs...)});
  std::apply([](auto&... input) { (detail::for_tensors(input, [](at::Tensor& tensor) { tensor.reset(); }), ...); },
             call->inputs);
  detail::RegionScope scope(
      tensors, [call](const std::vector<at::Tensor>& again) { call->run(again); }, options);
  tensors.clear();
  auto result = function(inputs...);
  scope.finish();
  return result;
}

template <class Function, class... Inputs>
requires(!std::same_as<std::remove_cvref_t<Function>, CheckpointOptions>) auto checkpoint(Function function,
                                                                                          const Inputs&... inputs) {
  return checkpoint(CheckpointOptions{}, std::move(function), inputs...);
}

using Layer = std::function<at::Tensor(const at::Tensor&)>;

/// Runs layers in sequence, divided into `segments` parts of about equal length. All parts except the last one run
/// under checkpoint(). The last part does not, because backward needs its activations immediately.
/// Params: layers – each layer is called with the output of the previous one
///         segments – number of parts. Memory is lowest if `segments` is about the square root of the number of layers
/// Throws: c10::ValueError if there are no layers, or if `segments` is not between 1 and the number of layers
/// Ref:    torch.utils.checkpoint.checkpoint_sequential
at::Tensor checkpoint_sequential(const std::vector<Layer>& layers, int64_t segments, const at::Tensor& input,
                                 const CheckpointOptions& options = {});

/// Overload for modules: a torch::nn::Sequential, or a container of modules or module holders.
template <class Modules>
requires(!std::convertible_to<const Modules&, const std::vector<Layer>&>) at::Tensor
    checkpoint_sequential(const Modules& modules, int64_t segments, const at::Tensor& input,
                          const CheckpointOptions& options = {}) {
  std::vector<Layer> layers;
  const auto add = [&](const auto& container) {
    for (const auto& module : container) {
      if constexpr (requires { module->forward(input); }) {
        layers.push_back([one = module](const at::Tensor& x) mutable { return at::Tensor(one->forward(x)); });
      } else {
        layers.push_back([one = module](const at::Tensor& x) mutable { return at::Tensor(one.forward(x)); });
      }
    }
  };
  if constexpr (requires { std::begin(modules); }) {
    add(modules);
  } else {
    add(*modules);
  }
  return checkpoint_sequential(layers, segments, input, options);
}

}  // namespace bellows::recompute
