#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "bellows/graph/recording/region.h"
#include "bellows/tap/deferral.h"

namespace bellows {

namespace compile_detail {
class CpuBackend;
}

struct CompileOptions {
  /// Whether operators that were followed are made faster: passes over the program, generated kernels. Without, they run in order, with
  /// the bits of plain code.
  bool generate = true;
  /// Only passes that leave every bit as plain code has it, and no generated code.
  bool exact = false;
  /// With `generate`: tensors that keep their values from the first call on, as weights do in inference. What depends on them only is
  /// computed once. A call that brings other tensors in their place is computed from those.
  std::vector<at::Tensor> frozen{};
  /// With `generate`: bf16 or half. Products of fp32 run in it, and what follows them, as they would under libtorch's autocast
  /// (graph/autocast.h); your tensors, and what comes out, stay fp32. Calls are in fp32 until ready().
  std::optional<c10::ScalarType> autocast{};
  size_t max_recordings = 16;      ///< as graph::RegionOptions
  size_t max_operators = 100'000;  ///< as graph::RegionOptions
  bool guard_inputs = true;        ///< as graph::RegionOptions
};

/// Runs what a compiled function on this thread has answered but not run yet. Call it there before code that reaches tensors'
/// data by pointer, or hands them to another thread.
using tap::sync;

/// While it lives, operators of a compiled function on this thread run when they are called. For code that mixes operators and
/// pointers: printing a tensor, libraries that know nothing of this.
using undeferred = tap::UndeferredGuard;

namespace compile_detail {

/// The part of a compiled function that does not depend on its type.
class CompiledRegion {
 public:
  explicit CompiledRegion(const CompileOptions& options);
  /// What happened in all calls so far.
  graph::Explanation explain() const;
  /// The recordings that are kept.
  std::vector<graph::Graph> graphs() const;
  /// Whether all that is being made faster in the background has been made. Calls are right before, too.
  bool ready() const;

 protected:
  void run(const std::function<void()>& function) const;

 private:
  std::shared_ptr<CpuBackend> backend_;  ///< null: operators run in order
  std::shared_ptr<graph::Region> region_;
};

}  // namespace compile_detail

/// A function in whose place this one is called; made by compile(). Copies share their recordings.
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

/// A function to be called in place of another one: a forward pass, or a whole training step. Its operators are recorded by the first call
/// and followed in later ones, in which the function runs, too, as graph::Region tells. docs/compile.md says what a function may do.
/// Params:   function – copied; called with the arguments that the result is called with
/// Numerics: within the tolerances of docs/compile.md (tests/compile); with `exact`, or without `generate`, the bits of plain code (tests/graph),
///           but for the operators that docs/tap-bits.md names
/// Cost:     following takes about a microsecond an operator (bench/compile). A thread and child processes compile in the background; calls run
///           operators in order until that is ready
/// Threads:  safe if the function's own calls are
/// Throws:   c10::ValueError – an option below 1, `autocast` with another type, with `exact` or without `generate`; calls: what the function and its operators throw, the latter when they run
/// Ref:      torch.compile
template <class Function>
auto compile(Function&& function, const CompileOptions& options = {}) {
  return Compiled<std::decay_t<Function>>(std::forward<Function>(function), options);
}

}  // namespace bellows
