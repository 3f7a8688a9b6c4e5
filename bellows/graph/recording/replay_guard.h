#pragma once

#include <optional>
#include <vector>

#include "bellows/core/mutex.h"
#include "bellows/graph/recording/match.h"
#include "bellows/graph/recording/record.h"
#include "bellows/graph/recording/recording_tree.h"
#include "bellows/graph/recording/region.h"
#include "bellows/graph/replay/call_notes.h"
#include "bellows/tap/deferral.h"
#include "bellows/tap/op_tap.h"
#include "bellows/tap/pending_storage.h"

namespace bellows::graph::detail {

/// Follows one call of a region while its operators match the recordings, and records the rest of the call.
///
/// At any time, the call is at one step of the tree, and its buffers are numbered as on the path to this step. The next
/// operator either matches a following step, or runs immediately and becomes a new step. A new step is added only after
/// its operator has run without an exception.
/// Threads: called by the region's thread and by autograd's workers, one at a time
class ReplayGuard : public tap::OpTap, public tap::Deferral {
 public:
  /// Params: notes – receives what a replay of the call needs; null if there is no replay
  ReplayGuard(RecordingTree& tree, const RegionOptions& options, CallNotes* notes = nullptr)
      : tree_(tree), options_(options), notes_(notes), at_(tree.root()), from_(tree.root()) {
    buffers_.reserve(tree.most_buffers());
  }

  void call(const tap::OpCall& op, tap::Stack& stack) override;
  void sync() override;
  void set_deferring(bool on) override;
  /// Ends the call and runs all pending operators. The tap must have been removed before.
  void finish();
  // Call these functions only after finish(): no other thread uses the guard then.
  const Explanation& counts() const BELLOWS_NO_THREAD_SAFETY_ANALYSIS { return counts_; }
  /// Returns whether the call was followed completely, and would not have been slower in eager code.
  bool in_vain() const BELLOWS_NO_THREAD_SAFETY_ANALYSIS {
    return counts_.followed_calls > 0 && !worthwhile_ && !plain_;
  }

 private:
  struct Found {
    Step* step = nullptr;
    Agreement agreement = Agreement::none;
  };

  Found find(const Arrival& arrival) const BELLOWS_REQUIRES(mutex_);
  void follow(Step* step, const Arrival& arrival, const tap::OpCall& op, tap::Stack& stack) BELLOWS_REQUIRES(mutex_);
  void defer(Step* step, const Arrival& arrival, tap::Stack& stack) BELLOWS_REQUIRES(mutex_);
  void run_now(Step* step, const Arrival& arrival, const tap::OpCall& op, tap::Stack& stack) BELLOWS_REQUIRES(mutex_);
  Step* step_with_results(Step* first, std::span<const c10::IValue> arguments, std::span<const c10::IValue> results)
      BELLOWS_REQUIRES(mutex_);
  void follow_or_record(const tap::OpCall& op, tap::Stack& stack) BELLOWS_REQUIRES(mutex_);
  void record(const tap::OpCall& op, tap::Stack& stack) BELLOWS_REQUIRES(mutex_);
  bool defer_recorded(const tap::OpCall& op, tap::Stack& stack, OperatorRecorder& recorder) BELLOWS_REQUIRES(mutex_);
  std::optional<RecordedOperator> try_on_stand_ins(const tap::OpCall& op, const OperatorFacts& facts, tap::Stack& stack,
                                                   OperatorRecorder recorder) BELLOWS_REQUIRES(mutex_);
  bool needs_pending(When when, const OperatorFacts& facts, const Arrival& arrival) BELLOWS_REQUIRES(mutex_);
  void note_mismatch(const tap::OpCall& op, const Arrival* arrival) BELLOWS_REQUIRES(mutex_);
  void stand_at(Step* step) BELLOWS_REQUIRES(mutex_);
  void flush(bool diverged = false) BELLOWS_REQUIRES(mutex_);
  void undo(size_t operators, size_t numbers) BELLOWS_REQUIRES(mutex_);
  void settle() BELLOWS_REQUIRES(mutex_);
  Plan* plan(bool diverged) BELLOWS_REQUIRES(mutex_);

  using Answers = c10::SmallVector<c10::IValue, 3>;
  Answers answers(const Step& step, const Arrival& arrival) BELLOWS_REQUIRES(mutex_);
  at::Tensor answer(const CompactOperator::Result& result, const Arrival& arrival) BELLOWS_REQUIRES(mutex_);
  bool wait_for(const Arrival& arrival) BELLOWS_REQUIRES(mutex_);

  Mutex mutex_;
  RecordingTree& tree_ BELLOWS_GUARDED_BY(mutex_);
  const RegionOptions& options_;
  CallNotes* const notes_ BELLOWS_PT_GUARDED_BY(mutex_);
  Step* at_ BELLOWS_GUARDED_BY(mutex_);
  BufferTable buffers_ BELLOWS_GUARDED_BY(mutex_);
  Segment pending_ BELLOWS_GUARDED_BY(mutex_);
  const Step* from_ BELLOWS_GUARDED_BY(mutex_);            ///< the step at which pending operators last ran
  std::vector<bool> alive_ BELLOWS_GUARDED_BY(mutex_);     ///< for plan()
  std::vector<BufferId> busy_ BELLOWS_GUARDED_BY(mutex_);  ///< buffers that pending operators read or write
  tap::StorageHolds holds_ BELLOWS_GUARDED_BY(mutex_);
  Explanation counts_ BELLOWS_GUARDED_BY(mutex_);
  int eager_guards_ BELLOWS_GUARDED_BY(mutex_) = 0;  ///< number of active eager guards
  bool plain_ BELLOWS_GUARDED_BY(mutex_) = false;    ///< the rest of the call is neither followed nor recorded
  bool finishing_ BELLOWS_GUARDED_BY(mutex_) = false, ended_ BELLOWS_GUARDED_BY(mutex_) = false;
  bool worthwhile_ BELLOWS_GUARDED_BY(mutex_) = false;  ///< a program is expected to be faster than eager code
};

}  // namespace bellows::graph::detail
