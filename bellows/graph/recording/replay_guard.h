#pragma once

#include <mutex>
#include <optional>
#include <vector>

#include "bellows/graph/recording/interpreter.h"
#include "bellows/graph/recording/match.h"
#include "bellows/graph/recording/record.h"
#include "bellows/graph/recording/recording_tree.h"
#include "bellows/graph/recording/region.h"
#include "bellows/tap/deferral.h"
#include "bellows/tap/op_tap.h"
#include "bellows/tap/pending_storage.h"

namespace bellows::graph::detail {

/// Follows one call of a region as far as its operators match the recordings, and records the rest.
///
/// At any time, the call is at one step of the tree, and all its buffers are numbered as on the path to that step. An
/// operator either matches a next step, or runs immediately and becomes a new step. A step is added only after its
/// operator has run without an exception.
/// Threads: called by the region's thread and by autograd's workers; they run one at a time
class ReplayGuard : public tap::OpTap, public tap::Deferral {
 public:
  ReplayGuard(RecordingTree& tree, const RegionOptions& options)
      : tree_(tree), options_(options), at_(tree.root()), from_(tree.root()) {
    buffers_.reserve(tree.most_buffers());
  }

  void call(const tap::OpCall& op, tap::Stack& stack) override;
  void sync() override;
  void set_deferring(bool on) override;
  /// Ends the call: runs all pending operators. The tap must have been removed.
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
  bool defer_recorded(const tap::OpCall& op, tap::Stack& stack, NodeRecorder& recorder);
  std::optional<Node> node_of_later(const tap::OpCall& op, tap::Stack& stack, NodeRecorder recorder);
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
  const Step* from_;            ///< the step at which pending operators last ran
  std::vector<bool> alive_;     ///< for plan()
  std::vector<BufferId> busy_;  ///< buffers that pending operators read or write
  tap::StorageHolds holds_;
  Explanation counts_;
  int eager_guards_ = 0;  ///< number of active eager guards
  bool plain_ = false;    ///< the rest of the call is neither followed nor recorded
  bool ended_ = false;
};

}  // namespace bellows::graph::detail
