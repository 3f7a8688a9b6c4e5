#pragma once

#include <c10/util/SmallVector.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ranges>
#include <type_traits>
#include <utility>
#include <vector>

#include "bellows/compile/call_values.h"
#include "bellows/core/model.h"
#include "bellows/graph/recording/region.h"
#include "bellows/tap/deferral.h"

namespace bellows {

namespace compile_detail {
class CpuBackend;
}

/// Tensors that keep their values. A model is converted to its parameters and buffers.
class FrozenTensors {
 public:
  constexpr FrozenTensors() = default;
  FrozenTensors(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}
  FrozenTensors(std::initializer_list<at::Tensor> tensors) : tensors_(tensors) {}
  FrozenTensors(const Model& model);
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  std::vector<at::Tensor> tensors_;
};

struct CompileOptions {
  /// Optimizes the operators of the function with passes and generated kernels. If false, the operators run in order,
  /// and their results are bit-identical to eager code.
  bool generate = true;
  /// Uses only passes that are bit-identical to eager code, and generates no code.
  bool exact = false;
  /// Requires `generate`. Tensors that keep their values from the first call on, such as weights in inference.
  /// Operators that depend only on these tensors are computed once. If a frozen tensor is replaced, calls use the new
  /// tensor. `.frozen = model` freezes all parameters and buffers of a model.
  FrozenTensors frozen{};
  /// Requires `generate`. If this is bf16 or half, fp32 matmuls, fp32 convolutions and the operators that follow them
  /// run in this dtype, as under libtorch's autocast (graph/passes/autocast.h). Your tensors and the results stay in
  /// fp32. On processors with slow fp16 kernels, matmuls and convolutions in half are computed in fp32 and rounded
  /// (tap/half_operators.h). With `exact` or without `generate`, this requires an amp::AutocastGuard around the call.
  std::optional<c10::ScalarType> autocast{};
  /// Requires `generate`. Calls do not wait for the compiler. They run eagerly until the program is compiled, so
  /// results depend on the compilation time. Use this option if the first seconds matter more than reproducible
  /// results.
  bool background = false;
  /// Compiles also programs that are not expected to be faster than eager code. By default, calls with such programs
  /// run eagerly (compile/cost_model.h).
  bool always = false;
  /// Requires `generate`. A number in (0, 1]: the maximum peak memory of activations, as a fraction of the peak without
  /// this option. Values that are needed much later, such as activations in a training step, are freed and computed
  /// again (graph/passes/recompute.h). Results do not change, except by the fusion of the repeated operators. A smaller
  /// budget never gives a higher peak. If the budget cannot be met, a warning is logged, and the program with the
  /// smallest peak runs. explain() states the peak and the repeated work.
  double memory_budget = 1;
  /// Requires `generate`. Identical calls run their program without calling the function. `.replay = {.after = 3}` starts
  /// after three identical calls; 0 turns replay off. A replay checks the arguments and the tensors that the function
  /// uses, but it does not notice that the function itself, or a number that it uses, has changed. Therefore, every
  /// `verify_every`-th call runs the function and falls back to following if it has changed. Results that the function
  /// keeps, such as gradients, are updated in place. The section "Replay" of docs/compile.md states all rules.
  graph::ReplayOptions replay{};
  size_t max_recordings = 64;      ///< see graph::RegionOptions
  size_t max_operators = 100'000;  ///< see graph::RegionOptions
  bool guard_inputs = true;        ///< see graph::RegionOptions
};

/// Runs all operators that compiled functions deferred on this thread. Call this function before you access data
/// through a pointer or pass tensors to another thread.
using tap::sync;

/// While this guard exists, the operators of compiled functions on this thread run immediately when they are called.
/// Use it for code that calls operators and also accesses data through pointers, such as code that prints tensors.
using eager_guard = tap::EagerGuard;

namespace compile_detail {

/// The part of a compiled function that does not depend on the function's type.
class CompiledRegion {
 public:
  explicit CompiledRegion(const CompileOptions& options);
  /// Returns statistics of all calls so far.
  graph::Explanation explain() const;
  /// Returns the recordings in memory.
  std::vector<graph::Recording> recordings() const;
  /// Returns whether no compilation is running. Between calls, this is always true, except with `background`.
  bool ready() const;

 protected:
  using TensorArguments = c10::SmallVector<const at::Tensor*, 8>;
  /// Adds an argument of a call if it is a tensor or a sequence of tensors.
  template <class Argument>
  static void add_tensors(const Argument& argument, TensorArguments& tensors) {
    if constexpr (std::is_base_of_v<at::Tensor, Argument>) {
      tensors.push_back(&argument);
    } else if constexpr (std::ranges::forward_range<Argument>) {
      if constexpr (std::is_same_v<std::ranges::range_reference_t<const Argument>, const at::Tensor&>) {
        for (const at::Tensor& tensor : argument) tensors.push_back(&tensor);
      }
    }
  }
  /// Params:  frame – null if calls are not replayed
  /// Returns: whether the call was replayed; the function was then not called, and `frame` contains its result
  bool run(const std::function<void()>& function, const TensorArguments& tensors,
           graph::CallFrame* frame = nullptr) const;
  bool replays() const { return replays_; }

 private:
  std::shared_ptr<CpuBackend> backend_;  ///< null if operators run in order
  std::shared_ptr<graph::Region> region_;
  bool replays_ = false;
  bool optimizes_ = false;  ///< whether results may differ from eager code
};

}  // namespace compile_detail

/// A compiled function, created by compile(). You call it instead of the original one. Copies of the object share their
/// recordings.
template <class Function>
class Compiled : public compile_detail::CompiledRegion {
 public:
  Compiled(Function function, const CompileOptions& options)
      : CompiledRegion(options), function_(std::make_shared<Function>(std::move(function))) {}

  template <class... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) const {
    using Result = std::invoke_result_t<Function&, Arguments...>;
    TensorArguments tensors;
    (add_tensors(arguments, tensors), ...);
    const auto call = [&]() -> Result { return std::invoke(*function_, std::forward<Arguments>(arguments)...); };
    graph::CallFrame frame;
    graph::CallFrame* const used = replays() ? &frame : nullptr;
    if (used) (compile_detail::add_value<std::decay_t<Arguments>>(arguments, frame), ...);
    if constexpr (std::is_void_v<Result>) {
      run(call, tensors, used);
    } else if constexpr (std::is_reference_v<Result>) {
      if (used) frame.unsupported = "the function returns a reference";
      std::add_pointer_t<Result> result = nullptr;
      run([&] { result = &call(); }, tensors, used);
      return static_cast<Result>(*result);
    } else if constexpr (compile_detail::consists_of_tensors<Result>::value) {
      std::optional<Result> result;
      const auto call_and_note = [&] {
        result.emplace(call());
        if (used) compile_detail::add_result(*result, frame);
      };
      if (run(call_and_note, tensors, used)) return compile_detail::ResultReader<Result>::read(frame);
      return Result(std::move(*result));
    } else {
      if (used) frame.unsupported = "the function returns a type that does not consist of tensors";
      std::optional<Result> result;
      run([&] { result.emplace(call()); }, tensors, used);
      return Result(std::move(*result));
    }
  }

 private:
  std::shared_ptr<Function> function_;
};

/// Compiles a function, such as a forward pass or a whole training step. You call the result instead of the function.
/// The first call records the operators, compiles them to a program and runs it. Later calls follow the recording: your
/// function still runs, but its operators are compared with the recording, and the program computes the results (see
/// graph::Region). docs/compile.md states the rules for your function. Results are reproducible: they depend on the
/// function, its inputs and the machine, but not on timing, earlier calls or the kernel cache. There are two
/// exceptions: `background`, and functions with more than `max_recordings` recordings.
/// Params:   function – the function to compile. It is copied, and is called with the arguments of each call
/// Numerics: within the tolerances of docs/compile.md (tests/compile). With `exact`, or without `generate`, results are
///           bit-identical to eager code (tests/graph), except for the operators listed in docs/tap-bits.md
/// Cost:     following takes about one microsecond per operator (bench/compile). The first call of each recording waits
///           for a thread and child processes that compile it: 0.5 to 30 s, or less with a filled kernel cache
/// Threads:  calls may be concurrent if concurrent calls of the original function are safe
/// Throws:   c10::ValueError if `max_recordings` is 0, or if `autocast` is neither bf16 nor half, is combined with
///           `exact`, or is used without `generate`. Also if `memory_budget` is not in (0, 1], or if `memory_budget` or
///           `replay` is used without `generate`. Calls throw exceptions of the function and of its operators. Exceptions
///           of operators are thrown when the operators run
/// Ref:      torch.compile
template <class Function>
auto compile(Function&& function, const CompileOptions& options = {}) {
  return Compiled<std::decay_t<Function>>(std::forward<Function>(function), options);
}

}  // namespace bellows
