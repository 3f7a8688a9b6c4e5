#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "bellows/graph/program/explanation.h"
#include "bellows/graph/recording/graph.h"

namespace bellows::graph {

class Backend;

struct RegionOptions {
  /// Maximum number of recordings in memory: for different shapes, modes and branches. The least recently used one is
  /// dropped.
  size_t max_recordings = 16;
  /// A call with more operators runs the rest eagerly.
  size_t max_operators = 100'000;
  /// If the host accesses a tensor that pending operators read or write, an error is thrown on every thread until they
  /// have run. Without this check, a host write takes effect before reads that were called earlier, undetected. Other
  /// threads may then use the inputs in eager code.
  bool guard_inputs = true;
  /// Defers the operators of recorded calls, too, and runs them as programs. Then the operators that run together
  /// depend only on the call, not on earlier calls. To find the sizes of its results, each new operator runs once on
  /// stand-ins. Without this option, recorded operators run when they are called.
  bool record_deferred = false;
  /// Executes the followed operators. Without a back end, they run one by one in order.
  std::shared_ptr<Backend> backend{};
};

/// A part of a program that runs repeatedly: a forward pass, or a whole training step. The first call records its
/// operators; later calls are followed.
///
/// The function runs in every call. Each operator is compared with a recording: the operator, its tensors by their
/// identity in the recording, shapes, strides, dtypes, and the state of libtorch. As long as operators match, they are
/// not run. They return tensors that have no data yet.
/// When the function ends, or a value is needed, the pending operators run in order, and the tensors that are still
/// referenced get their data. At the first operator that differs, the pending operators run, and the rest of the call
/// is recorded. Both recordings stay in memory and are followed later. Numbers that change from call to call become
/// inputs. docs/compile.md states the rules for code in a region.
/// Numerics: bit-identical to the same operators under an OpTap, and to plain libtorch except for docs/tap-bits.md
/// Threads:  safe; concurrent calls have separate recordings. Operators on threads that the function starts are
///           followed only if it starts them by tap::thread. On other threads, accessing pending tensors is an error.
class Region {
 public:
  explicit Region(const RegionOptions& options = {});

  /// Calls `function`. All tensors that it leaves behind have their values when run() returns or throws.
  /// Throws: exceptions of the function; exceptions of deferred operators. These are thrown when the operator runs, and
  ///         their message states this.
  void run(const std::function<void()>& function);

  /// Returns: statistics of all completed calls
  Explanation explain() const;
  /// Returns: the recordings in memory
  std::vector<Graph> graphs() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace bellows::graph
