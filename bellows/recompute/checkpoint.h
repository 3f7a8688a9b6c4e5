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
  /// What to keep of each operator's outputs, so that the second run need not compute it; empty: nothing. Bits as without,
  /// except where docs/tap-bits.md names an operator. The function must call the same operators both times.
  CheckpointRule policy = {};
  /// Keeps what saves most time in the second run, up to this fraction of what the function saves, 0 … 1. Without it a
  /// budget guard around the call decides, if there is one and there is no policy; it measures less often and knows all regions.
  std::optional<double> budget = {};
  /// The second run draws the random numbers of the first: the default generators of the CPU and of the inputs' devices
  /// are put back for it, and afterwards to where they were. Only where the first run drew any.
  bool preserve_rng_state = true;
  /// The second run ends as soon as it has what backward needs.
  bool early_stop = true;
  /// Number, sizes, dtype and device of what the second run saves must be those of the first.
  bool check_metadata = true;
  /// Their values, too, bit for bit: finds what a function does differently. Reads all of them in both runs.
  bool check_values = false;
  /// Buffers that the function writes in place (running statistics, counters) are put back after the second run.
  bool restore_buffers = true;
};

namespace detail {

/// Runs the function on these tensors in place of its inputs; the results are dropped.
using Rerun = std::function<void(const std::vector<at::Tensor>&)>;

/// False in no-grad and inference mode: nothing will be saved, so nothing need be computed again.
bool records_graph();

class Region;

/// While it lives, what autograd saves on this thread belongs to one region.
class RegionScope {
 public:
  RegionScope(const std::vector<at::Tensor>& inputs, Rerun rerun, const CheckpointOptions& options);
  ~RegionScope();
  RegionScope(const RegionScope&) = delete;
  RegionScope& operator=(const RegionScope&) = delete;
  /// The function has returned.
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

/// Calls visit(tensor) for the tensors of one input: a tensor, an optional one, a container of them.
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

/// A function and its inputs without their tensors, which the region keeps in its own way.
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

/// Calls `function(inputs...)` without keeping what it computes on the way: of what autograd saves, only the inputs
/// stay. When backward needs the rest, the function runs again. Parameters that it captures get their gradients, too.
///
/// The function has to do the same both times: no random numbers but those of libtorch's default generators, no inputs
/// or captured tensors modified meanwhile. What differs in sizes, dtype or number is an error in backward; other values
/// are noticed with check_values only. It is copied and lives as long as the graph: **what it captures by reference must live until then**.
/// Tensors that it computes with should be inputs and not captured, so that regions around it do not keep them.
///
/// Regions nest, and go with autocast (the second run has the first one's), gradient accumulation, retain_graph (each
/// backward pass runs the function again), backward of some of the outputs, DistributedDataParallel, and the guards of
/// this component: inputs of a region are compressed and offloaded as other saved tensors are. In no-grad mode this is a
/// plain call.
/// Params:   options – in front: checkpoint({.budget = 0.5}, function, x)
///           inputs – tensors, optional tensors and vectors of tensors are kept for the second run; all else is copied
/// Returns:  what the function returns, of any type
/// Numerics: results, gradients, buffers and the state of the generators bit for bit as from `function(inputs...)`
///           (tests/recompute). A batch norm updates its running statistics once.
/// Cost:     one more forward pass of the function, less what a policy or budget keeps; memory of its inputs, of what is
///           kept, 5 KB if it draws random numbers, and in backward what the function saves
/// Threads:  safe; backward passes that need one region at the same time wait for each other. While a function that draws
///           random numbers runs for the first or second time, no other thread may draw: the generators are shared. On the
///           CPU it is noticed in backward
/// Throws:   c10::ValueError – a budget outside 0 … 1; the function modified an input in place; in backward: it did other things the second
///           time, others drew random numbers in one of its runs, an input was modified since, or a second derivative is wanted (create_graph)
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

/// Runs layers one after the other, cut into `segments` runs of about equal length, each but the last under checkpoint():
/// the last one's tensors are needed at once when backward begins.
/// Params:   layers – called with the output of the one before
///           segments – about the square root of the number of layers costs the least memory
/// Throws:   c10::ValueError – no layers, or segments not between 1 and their number
/// Ref:      torch.utils.checkpoint.checkpoint_sequential
at::Tensor checkpoint_sequential(const std::vector<Layer>& layers, int64_t segments, const at::Tensor& input,
                                 const CheckpointOptions& options = {});

/// The same for what holds modules: torch::nn::Sequential, a container of modules or of their holders.
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
