#pragma once

#include <memory>
#include <string>

#include "bellows/graph/program/explanation.h"
#include "bellows/graph/replay/replayed_call.h"

namespace bellows::graph::detail {

/// Decides which calls of a recording tree are replayed. Calls are replayed after `after` consecutive calls that were
/// followed completely and did the same. Every `verify_every`-th call is followed again. If it does something else, or
/// the arguments change, calls are followed until `after` of them are the same again.
/// Threads: one thread at a time
class CallReplay {
 public:
  explicit CallReplay(const ReplayOptions& options) : options_(options) {}

  /// Returns whether the next call is replayed unless its arguments or the tensors of the function have changed.
  bool ready() const { return call_ && identical_ >= options_.after && unverified_ + 1 < options_.verify_every; }
  /// Replays a call if possible. Requires ready().
  /// Returns: whether the call was replayed
  /// Throws:  exceptions of operators
  bool run(const CallStart& start, CallFrame& frame, Explanation& counts);
  /// Reports a call whose function ran.
  /// Params: followed – the call was followed completely
  void learn(const CallNotes& notes, const CallStart& start, const CallFrame& frame, bool followed,
             Explanation& counts);
  /// Reports a call that failed.
  void forget();
  /// Returns empty notes for a call whose function is about to run.
  std::unique_ptr<CallNotes> begin(std::span<const at::Tensor* const> arguments);

 private:
  void stop(Refusal refusal, bool changed, Explanation& counts);

  const ReplayOptions options_;
  std::unique_ptr<ReplayedCall> call_;
  int identical_ = 0;   ///< number of consecutive calls that did the same
  int unverified_ = 0;  ///< number of replayed calls since the function last ran
  bool poison_ = false;
  bool said_ = false;  ///< a warning has been logged
};

}  // namespace bellows::graph::detail
