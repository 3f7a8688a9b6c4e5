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
  /// How many ways through the region are kept: shapes, modes, branches. The one that was not used for longest makes room.
  size_t max_recordings = 16;
  /// A call that issues more operators than this runs the rest plainly.
  size_t max_operators = 100'000;
  /// The host's access to a tensor that pending operators read or write is an error, on every thread, until they have run. Without
  /// it a host write comes before reads that were called earlier, unnoticed; other threads may then use the inputs in plain code.
  bool guard_inputs = true;
  /// Makes what runs in the place of followed operators. Without one they run in order, one by one.
  std::shared_ptr<Backend> backend{};
};

/// A part of a program that is run again and again: a forward pass, or a whole training step. Its operators are recorded by the first
/// call; later calls are followed.
///
/// The function runs on every call. While its operators agree with a recording (the operator, its tensors by their identity in the
/// recording, shapes, strides, dtypes, the state of libtorch it is called in), they are not run: they are answered with tensors that
/// have no data yet. When the function ends, or a value is needed, they run, in order, and the tensors that somebody still holds get
/// their data. At the first operator that differs the part so far runs, and recording starts anew from there: both ways are kept, and
/// followed from then on. Numbers that differ from call to call become inputs. docs/compile.md says what that means for code in a region.
/// Numerics: the bits of the same operators called under an OpTap, which are those of plain libtorch but for docs/tap-bits.md
/// Threads:  safe; calls at the same time have recordings of their own. Operators from threads that the function starts itself are not
///           followed, and touching pending tensors there is an error
class Region {
 public:
  explicit Region(const RegionOptions& options = {});

  /// Calls `function`. What it leaves behind has its values when run() returns, also when it throws.
  /// Throws: what the function throws; what a deferred operator throws, then as late as when it ran, and with a note that says so
  void run(const std::function<void()>& function);

  /// What happened so far, without the calls that are running.
  Explanation explain() const;
  /// The recordings that are kept.
  std::vector<Graph> graphs() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace bellows::graph
