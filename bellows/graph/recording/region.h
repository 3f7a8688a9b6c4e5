#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "bellows/graph/program/explanation.h"
#include "bellows/graph/recording/recording.h"
#include "bellows/graph/replay/call_frame.h"

namespace bellows::graph {

class Backend;

struct RegionOptions {
  /// Maximum number of recordings in memory. Different shapes, modes and branches need separate recordings. If there
  /// are more recordings, the least recently used one is dropped.
  size_t max_recordings = 64;
  /// Maximum number of operators per call. All further operators of the call run eagerly.
  size_t max_operators = 100'000;
  /// Throw an error if the host accesses a tensor that pending operators read or write. The check applies to all
  /// threads until these operators have run. Without the check, a host write can take effect before an earlier read,
  /// and this is not detected. On the other hand, other threads may then use the inputs in eager code.
  bool guard_inputs = true;
  /// Defer operators also in the calls that are being recorded, and run them as programs. Then a program depends only
  /// on its call, not on earlier calls. To find the sizes of its results, each new operator runs once on stand-ins.
  /// Without this option, operators run eagerly while they are recorded.
  bool record_deferred = false;
  /// Runs the program of identical calls without calling the function (ReplayOptions). Requires a back end.
  ReplayOptions replay{};
  /// Executes the followed operators. If null, the operators run one by one in order.
  std::shared_ptr<Backend> backend{};
};

/// A part of a program that runs repeatedly, such as a forward pass or a whole training step. The first call of a
/// region records the operators. Later calls follow this recording.
///
/// The function runs in every call. Each operator is compared with a recording. The comparison covers the operator,
/// which tensors of the recording it receives, their shapes, strides and dtypes, and the state of libtorch. Operators
/// that match do not run. Instead, they return tensors that have no data yet. When the function ends or a value is
/// needed, the pending operators run in order. All tensors that are still referenced then get their data. At the first
/// operator that does not match, the pending operators run, and the rest of the call is recorded. Both recordings stay
/// in memory, and later calls can follow either of them. Numbers that differ between calls become inputs.
/// With the option `replay`, identical calls run their program without the function.
/// docs/compile.md states the rules for code in a region.
/// Numerics: bit-identical to the same operators under an OpTap. Bit-identical to plain libtorch except for the
///           operators in docs/tap-bits.md
/// Threads:  thread-safe; concurrent calls have separate recordings. Operators on a thread that the function starts are
///           followed only if the function starts the thread with tap::thread(). Code on other threads must not access
///           pending tensors
class Region {
 public:
  explicit Region(const RegionOptions& options = {});

  /// Calls `function`. When run() returns or throws, all tensors that the function created have their values.
  ///
  /// If the programs of a call are not expected to be faster than eager code (Executable::is_worthwhile()), later calls
  /// with the same kinds of arguments run eagerly. After 1, 2, 4, … 64 such calls, one call is followed again, because
  /// the function may have changed.
  /// Params: arguments – the tensors that the function receives. Calls with other sizes, strides or dtypes are followed
  /// Throws: exceptions of the function and of deferred operators. An exception of a deferred operator is thrown when
  ///         the operator runs, and its message states this
  void run(const std::function<void()>& function, std::span<const at::Tensor* const> arguments = {}) {
    run(function, arguments, nullptr);
  }
  /// The same for a call that may be replayed (RegionOptions::replay).
  /// Params:  frame – what a replay needs in addition; if null, the call is not replayed
  /// Returns: whether the call was replayed, so that the function was not called. Its result is then in `frame`
  bool run(const std::function<void()>& function, std::span<const at::Tensor* const> arguments, CallFrame* frame);

  /// Returns statistics of all completed calls.
  Explanation explain() const;
  /// Returns the recordings in memory.
  std::vector<Recording> recordings() const;

 private:
  struct State;
  static void follow(State& state, const std::function<void()>& function, std::span<const at::Tensor* const> arguments,
                     CallFrame* frame, uint64_t kind);
  static bool replay(State& state, std::span<const at::Tensor* const> arguments, CallFrame& frame);
  std::shared_ptr<State> state_;
};

}  // namespace bellows::graph
