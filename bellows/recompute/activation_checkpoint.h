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
  /// Selects operator outputs to keep, so that the second run need not compute them. Empty: keep none. Results are the
  /// same as without a policy, except for the operators listed in docs/tap-bits.md. The function must call the same
  /// operators in both runs.
  CheckpointRule policy = {};
  /// Keeps the outputs that save the most time in the second run, up to this fraction (0 … 1) of the bytes that the
  /// function saves. Without a budget and a policy, a surrounding BudgetGuard decides. It measures less often and takes
  /// all checkpointed calls into account.
  std::optional<double> budget = {};
  /// The second run draws the same random numbers as the first. For this, the default generators of the CPU and of the
  /// inputs' devices are reset for the second run, and restored afterwards. Applies only if the first run drew random
  /// numbers.
  bool preserve_rng_state = true;
  /// Ends the second run as soon as all tensors that backward needs are available.
  bool early_stop = true;
  /// Checks that the second run saves as many tensors as the first, with the same sizes, dtypes and devices.
  bool check_metadata = true;
  /// Also checks that the values are bit-identical. Finds differences between the two runs, but reads all saved tensors
  /// in both.
  bool check_values = false;
  /// After the second run, restores buffers that the function writes in place (running statistics, counters).
  bool restore_buffers = true;
};

namespace detail {

/// Runs the function on these tensors instead of its inputs. The results are dropped.
using Rerun = std::function<void(const std::vector<at::Tensor>&)>;

/// False in no-grad and inference mode: autograd saves nothing, so nothing needs to be recomputed.
bool records_graph();

class Region;

/// While it lives, the tensors that autograd saves on this thread belong to one region.
class RegionScope {
 public:
  RegionScope(const std::vector<at::Tensor>& inputs, Rerun rerun, const CheckpointOptions& options);
  ~RegionScope();
  RegionScope(const RegionScope&) = delete;
  RegionScope& operator=(const RegionScope&) = delete;
  /// Call it when the function has returned.
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

/// Calls visit(tensor) for each tensor of one input: a tensor, an optional tensor, or a container of tensors.
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

/// A function and its inputs without their tensors. The region stores the tensors separately.
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

/// Calls `function(inputs...)` without keeping its activations. Only the inputs are kept. When backward needs the
/// activations, the function runs again. Parameters that the function captures get their gradients, too.
///
/// The function must do the same in both runs: it may draw random numbers from libtorch's default generators only, and
/// inputs and captured tensors must not be modified in between. Different sizes, dtypes or numbers of saved tensors are
/// an error in backward. Different values are detected with check_values only.
/// The function is copied and lives as long as the graph: **objects that it captures by reference must live until
/// then**. Pass tensors as inputs instead of capturing them, so that surrounding checkpointed calls do not keep them.
///
/// Checkpointed calls can nest. They support autocast (the second run uses the first one's state), gradient
/// accumulation, retain_graph (each backward pass runs the function again), backward of some of the outputs, and
/// DistributedDataParallel. They work with the guards of this component: inputs are compressed and offloaded like other
/// saved tensors. In no-grad mode, this is a plain call.
/// Params:   options – optional first argument: checkpoint({.budget = 0.5}, function, x)
///           inputs – tensors, optional tensors and vectors of tensors are kept for the second run; all other inputs
///           are copied
/// Returns:  the result of the function, of any type
/// Numerics: results, gradients, buffers and generator states are bit-identical to those of `function(inputs...)`
///           (tests/recompute). A batch norm updates its running statistics once.
/// Cost:     one more forward pass of the function, except for the operators whose outputs a policy or budget keeps.
///           Memory: the inputs, the kept outputs, 5 KB if it draws random numbers, and in backward the saved tensors
///           of the function.
/// Threads:  safe; backward passes that need the same call wait for each other. While a function that draws random
///           numbers runs for the first or second time, no other thread may draw, because the generators are shared. On
///           the CPU, backward detects violations.
/// Throws:   c10::ValueError if the budget is outside 0 … 1, or if the function modified an input in place.
///           In backward: if the second run differed from the first; if another thread drew random numbers meanwhile;
///           if an input was modified in between; if a second derivative is requested (create_graph)
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

/// Runs layers in sequence, divided into `segments` parts of about equal length. All parts except the last run under
/// checkpoint(), because backward needs the activations of the last part immediately.
/// Params: layers – each is called with the output of the previous one
///         segments – the memory is lowest at about the square root of the number of layers
/// Throws: c10::ValueError if there are no layers, or if `segments` is not between 1 and their number
/// Ref:    torch.utils.checkpoint.checkpoint_sequential
at::Tensor checkpoint_sequential(const std::vector<Layer>& layers, int64_t segments, const at::Tensor& input,
                                 const CheckpointOptions& options = {});

/// The same for modules: a torch::nn::Sequential, or a container of modules or module holders.
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
