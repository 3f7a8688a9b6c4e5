#pragma once

#include <mutex>
#include <vector>

#include "bellows/graph/recording/interpreter.h"
#include "bellows/graph/recording/match.h"
#include "bellows/graph/recording/recording_tree.h"
#include "bellows/graph/recording/region.h"
#include "bellows/tap/deferral.h"
#include "bellows/tap/op_tap.h"
#include "bellows/tap/pending_storage.h"

namespace bellows::graph::detail {

/// One call of a region: follows the recordings as far as they agree with what arrives, and records the rest.
///
/// At any time the call stands at a step of the tree, and all buffers that it met are numbered as on the way to that step. What
/// arrives either agrees with a next step, or runs at once and becomes one. A step is only added after its operator has run
/// without an exception.
/// Threads: calls come from the thread of the region and from autograd's workers; one at a time goes on
class Follower : public tap::OpTap, public tap::Deferral {
 public:
  Follower(RecordingTree& tree, const RegionOptions& options)
      : tree_(tree), options_(options), at_(tree.root()), from_(tree.root()) {
    buffers_.reserve(tree.most_buffers());
  }

  void call(const tap::OpCall& op, tap::Stack& stack) override;
  void sync() override;
  void set_deferring(bool on) override;
  /// The region's function has ended: runs what is pending. The tap must be off.
  void finish();
  const Explanation& counts() const { return counts_; }

 private:
  struct Found {
    Step* step = nullptr;
    Agreement agreement = Agreement::none;
  };

  Found find(const Arrival& arrival) const;
  void follow(Step* step, const Arrival& arrival, const tap::OpCall& op, tap::Stack& stack);
  void defer(Step* step, const Arrival& arrival, tap::Stack& stack);
  void run_now(Step* step, const Arrival& arrival, const tap::OpCall& op, tap::Stack& stack);
  Step* step_with_results(Step* first, std::span<const c10::IValue> arguments, std::span<const c10::IValue> results);
  void follow_or_record(const tap::OpCall& op, tap::Stack& stack);
  void record(const tap::OpCall& op, tap::Stack& stack);
  void note_mismatch(const tap::OpCall& op, const Arrival* arrival);
  void stand_at(Step* step);
  void flush(bool diverged = false);
  void undo(size_t nodes, size_t numbers);
  void settle();
  Plan* plan(bool diverged);

  using Answers = c10::SmallVector<c10::IValue, 3>;
  Answers answers(const Node& node, const tap::Stack& stack);
  at::Tensor answer(const Node& node, const Output& output, std::span<const c10::IValue> arguments);
  bool wait_for(const Node& node, const Arrival& arrival);

  std::mutex mutex_;
  RecordingTree& tree_;
  const RegionOptions& options_;
  Step* at_;
  BufferTable buffers_;
  Segment pending_;
  const Step* from_;            ///< the step that the call stood at when operators ran last
  std::vector<bool> alive_;     ///< for plan()
  std::vector<BufferId> busy_;  ///< buffers that pending operators read or write
  tap::StorageHolds holds_;
  Explanation counts_;
  int undeferred_ = 0;  ///< guards that live
  bool plain_ = false;  ///< the rest of the call is neither followed nor recorded
  bool ended_ = false;
};

}  // namespace bellows::graph::detail
