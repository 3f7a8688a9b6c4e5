#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/graph/recording/region.h"
#include "bellows/tap/deferral.h"

namespace bellows {

namespace compile_detail {
class CpuBackend;
}

/// Tensors that keep their values. A model stands for its parameters and buffers.
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
  /// Optimizes followed operators by passes over the program and generated kernels. Without it, they run in order and
  /// are bit-identical to eager code.
  bool generate = true;
  /// Uses only passes that are bit-identical to eager code, and generates no code.
  bool exact = false;
  /// With `generate`: tensors that keep their values from the first call on, such as weights in inference. Operators
  /// that depend only on them are computed once. If a call uses other tensors in their place, it is computed from
  /// those. `.frozen = model` lists all weights and buffers of a model.
  FrozenTensors frozen{};
  /// With `generate`: bf16 or half. Matmuls and convolutions in fp32, and operators that follow them, run in this dtype
  /// as under libtorch's autocast (graph/autocast.h). Your tensors and the results stay fp32.
  std::optional<c10::ScalarType> autocast{};
  /// With `generate`: calls do not wait for compilation. They run eagerly until the program is ready, so results depend
  /// on the time that compilation takes. Use it where the first seconds matter more than reproducible results.
  bool background = false;
  size_t max_recordings = 16;      ///< as graph::RegionOptions
  size_t max_operators = 100'000;  ///< as graph::RegionOptions
  bool guard_inputs = true;        ///< as graph::RegionOptions
};

/// Runs all pending operators of a compiled function on this thread. Call it there before code that accesses data by
/// pointer, or passes tensors to another thread.
using tap::sync;

/// While it lives, operators of a compiled function on this thread run when they are called. Use it for code that mixes
/// operators and pointers, such as printing a tensor, or calling libraries that take pointers.
using eager_guard = tap::EagerGuard;

namespace compile_detail {

/// The part of a compiled function that does not depend on its type.
class CompiledRegion {
 public:
  explicit CompiledRegion(const CompileOptions& options);
  /// Returns: statistics of all calls so far
  graph::Explanation explain() const;
  /// Returns: the recordings in memory
  std::vector<graph::Graph> graphs() const;
  /// True if no compilation is running. Always true between calls, except with `background`.
  bool ready() const;

 protected:
  void run(const std::function<void()>& function) const;

 private:
  std::shared_ptr<CpuBackend> backend_;  ///< null: operators run in order
  std::shared_ptr<graph::Region> region_;
};

}  // namespace compile_detail

/// A compiled function, made by compile(). You call it instead of the original one. Copies share their recordings.
template <class Function>
class Compiled : public compile_detail::CompiledRegion {
 public:
  Compiled(Function function, const CompileOptions& options)
      : CompiledRegion(options), function_(std::make_shared<Function>(std::move(function))) {}

  template <class... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) const {
    using Result = std::invoke_result_t<Function&, Arguments...>;
    const auto call = [&]() -> Result { return std::invoke(*function_, std::forward<Arguments>(arguments)...); };
    if constexpr (std::is_void_v<Result>) {
      run(call);
    } else if constexpr (std::is_reference_v<Result>) {
      std::add_pointer_t<Result> result = nullptr;
      run([&] { result = &call(); });
      return static_cast<Result>(*result);
    } else {
      std::optional<Result> result;
      run([&] { result.emplace(call()); });
      return Result(std::move(*result));
    }
  }

 private:
  std::shared_ptr<Function> function_;
};

/// Compiles a function: a forward pass, or a whole training step. Call the result instead of the function. The first
/// call records the operators, compiles them to a program, and runs it; later calls follow the recording. The function
/// runs in every call (graph::Region). docs/compile.md states the rules for the function.
/// Results are reproducible: they depend on the function, its inputs and the machine, not on time, on earlier calls or
/// on the kernel cache. The exception is a function with more than `max_recordings` recordings, and `background`.
/// Params:   function – copied; called with the arguments of the call
/// Numerics: within the tolerances of docs/compile.md (tests/compile). With `exact`, or without `generate`:
///           bit-identical to eager code (tests/graph), except for the operators listed in docs/tap-bits.md
/// Cost:     following takes about one microsecond per operator (bench/compile). The first call of each
///           recording waits until a thread and child processes have compiled it: 0.5 to 30 s, less if the kernel
///           cache has its kernels
/// Threads:  safe if concurrent calls of the function are safe
/// Throws:   c10::ValueError if `max_recordings` is 0, or if `autocast` is another dtype, or is combined with `exact`
///           or used without `generate`. Calls: exceptions of the function and of its operators; the latter are thrown
///           when the operators run
/// Ref:      torch.compile
template <class Function>
auto compile(Function&& function, const CompileOptions& options = {}) {
  return Compiled<std::decay_t<Function>>(std::forward<Function>(function), options);
}

}  // namespace bellows
